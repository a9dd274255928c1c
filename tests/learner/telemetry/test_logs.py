"""TensorFlow starts without a word; what matters still comes through."""

import os
import subprocess
import sys

import pytest

START = "from learner.telemetry.logs import import_tensorflow; import_tensorflow(); "
WORK = "import tensorflow as tf, keras; keras.layers.Dense(2)(tf.zeros((1, 2)))"
HELD = (
    "import os, sys\nfrom learner.telemetry.logs import _without_chatter\n"
    "with _without_chatter():\n"
    "    os.write(2, b'WARNING: All log messages before absl::InitializeLog() is called\\n')\n"
    "    os.write(2, b'I0000 00:00:1795991337.175412 4346 port.cc:153] oneDNN\\n')\n"
    "    os.write(2, b'2026-01-30 22:44:42.456316: I tensorflow/core/util/port.cc:153] oneDNN\\n')\n"
    "    os.write(2, b'To enable the following instructions: AVX2\\n')\n"
    "    os.write(2, b'E0000 00:00:1795991337.175412 4346 cuda.cc:1] no such device\\n')\n"
    "    sys.stderr.write('from Python\\n')\n"
    "    {last}\n"
    "os.write(2, b'after\\n')"
)


def errors_of(code: str, **environment: str) -> tuple[int, list[str]]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("TF_CPP")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**inherited, **environment},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr.splitlines()


def test_tensorflow_and_keras_start_and_work_without_a_word() -> None:
    assert errors_of(START + WORK) == (0, [])


def test_the_user_may_ask_for_every_word() -> None:
    code, lines = errors_of(START, TF_CPP_MIN_LOG_LEVEL="0")
    assert code == 0
    assert any("cpu_feature_guard" in line for line in lines)


def test_only_chatter_is_dropped() -> None:
    code, lines = errors_of(HELD.format(last="pass"))
    assert code == 0
    assert lines == [
        "E0000 00:00:1795991337.175412 4346 cuda.cc:1] no such device",
        "from Python",
        "after",
    ]


def test_an_import_that_fails_shows_what_was_held_back() -> None:
    code, lines = errors_of(HELD.format(last="import no_such_module"))
    assert code == 1
    assert "from Python" in lines
    assert lines[-1] == "ModuleNotFoundError: No module named 'no_such_module'"


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_death_inside_says_where() -> None:
    code, lines = errors_of(HELD.format(last="os.abort()"))
    assert code < 0
    assert lines[0] == "Fatal Python error: Aborted"
