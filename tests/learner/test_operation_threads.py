"""TensorFlow's threads follow the cores, and what was there before."""

import subprocess
import sys

import pytest

from learner import operation_threads as module
from learner.operation_threads import operation_threads

SET = "from learner.operation_threads import set_operation_threads as choose\n"
WORK = "import tensorflow as tf\ntf.zeros(1) + 1\n"
SHOW = "print(tf.config.threading.get_intra_op_parallelism_threads())"


def done(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("chosen", "cores", "threads"), [(0, 1, 1), (0, 2, 1), (0, 3, 1), (0, 16, 8), (5, 2, 5)]
)
def test_operations_take_half_of_the_cores(
    chosen: int, cores: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "available_cores", lambda: cores)
    assert operation_threads(chosen) == threads


def test_a_process_that_was_at_work_keeps_its_threads() -> None:
    assert done(f"{SET}choose(3)\n{WORK}choose(0)\nchoose(3)\n{SHOW}").stdout == "3\n"
    other = done(f"{SET}choose(3)\n{WORK}choose(2)")
    assert other.returncode == 1
    assert "cannot be modified" in other.stderr
