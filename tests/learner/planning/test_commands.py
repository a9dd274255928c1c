"""Both commands for real: they take their time."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SMALL = ["--env=CartPole-v1", "--num-actors=1", "--envs-per-actor=4", "--hidden-sizes=[8]"]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Where processes have their temporary files. Its name is short: those of sockets are limited."""
    with tempfile.TemporaryDirectory(prefix="sb-") as folder:
        yield Path(folder)


@pytest.fixture
def variables(temporary: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(temporary)}


def test_plan_measures_and_predicts(temporary: Path, variables: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "learner", "plan", *SMALL, "--seconds=0.1", "--json"],
        capture_output=True,
        text=True,
        env=variables,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 100 < found["env_steps_per_second"] < 1e6
    assert found["first_to_saturate"] in found["capacities"]
    assert set(found["policy_call_cpu_seconds"]) == {"1", "4"}
    assert list(temporary.iterdir()) == []


def test_tune_writes_what_train_takes_and_leaves_nothing(
    tmp_path: Path, temporary: Path, variables: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "learner", "tune", *SMALL, "--max-actors=1"]
    done = subprocess.run(
        [*command, "--seconds=30", "--out=tuned.toml"],
        capture_output=True,
        text=True,
        env=variables,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "Trials; * is the best" in done.stdout
    values = tomllib.loads((tmp_path / "tuned.toml").read_text())
    assert values["env"] == "CartPole-v1"
    assert values["hidden_sizes"] == [8]
    assert list(temporary.iterdir()) == []
    trained = subprocess.run(
        [sys.executable, "-m", "learner", "train", "--config=tuned.toml", "--total-steps=2000"],
        capture_output=True,
        text=True,
        env=variables,
        cwd=tmp_path,
    )
    assert trained.returncode == 0, trained.stderr


def test_tune_ends_cleanly_in_the_middle_of_a_trial(
    tmp_path: Path, temporary: Path, variables: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "learner", "tune", *SMALL, "--seconds=200", "--out=tuned.toml"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables, cwd=tmp_path
    )
    assert process.stderr is not None
    # Interrupted as soon as the first trial has been reported: in the second.
    words = []
    for line in process.stderr:
        words.append(line)
        if "steps/s" in line:
            break
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, "".join(words)
    assert "wrote tuned.toml" in said
    assert list(temporary.iterdir()) == []
    assert eventually_none(str(temporary))


def eventually_none(folder: str, seconds: float = 10.0) -> bool:
    """Whether no process is left that was started with this TMPDIR or one inside."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not [pid for pid in Path("/proc").iterdir() if pid.name.isdecimal() and _has(pid, folder)]:
            return True
    return False


def _has(process: Path, folder: str) -> bool:
    try:
        return f"TMPDIR={folder}".encode() in (process / "environ").read_bytes()
    except OSError:
        return False
