"""A learner that is told to end does so within its bound, whatever hangs."""

import signal
from pathlib import Path

import pytest

from learner.training.checkpoint import Checkpoints
from tests.integration.processes import Launcher, Process, options, until

pytestmark = pytest.mark.timeout(240)

SCRIPT = """
import sys, threading
where, *arguments = sys.argv[1:]
from learner.__main__ import main
from learner.training.checkpoint import Checkpoints
from learner.training.update import TracedUpdate

target, name = {"update": (TracedUpdate, "__call__"), "checkpoint": (Checkpoints, "save")}[where]
good, calls = getattr(target, name), 0

def hang(*arguments):
    global calls
    calls += 1
    if calls > 2:
        sys.stderr.write("it hangs\\n")
        threading.Event().wait()
    return good(*arguments)

setattr(target, name, hang)
sys.exit(main(arguments))
"""


def start(launch: Launcher, folder: Path, where: str, seconds: float) -> Process:
    chosen = options(
        env="CartPole-v1", logdir=folder / where, num_actors=1, envs_per_actor=2,
        total_steps=10_000_000, checkpoint_interval_seconds=0.001, drain_seconds=seconds,
    )  # fmt: skip
    return launch.python("-c", SCRIPT, where, "train", *chosen)


def test_what_hangs_is_given_up(launch: Launcher, tmp_path: Path) -> None:
    started = {where: start(launch, tmp_path, where, 1.0) for where in ("update", "checkpoint")}
    for process in started.values():
        process.says("it hangs")
        process.signal(signal.SIGTERM)
    for where, process in started.items():
        assert process.status() == 1, process.stderr
        assert "the run did not end within 1 s (--drain-seconds)" in process.stderr
        assert "in hang" in process.stderr, "expected the stack of what hangs"
        assert Checkpoints(tmp_path / where / "checkpoints", 1).load_latest() is not None
        until(lambda gone=process: not launch.left_by(gone), "the end of its actors", seconds=15)


def test_a_second_signal_ends_what_hangs_at_once(launch: Launcher, tmp_path: Path) -> None:
    process = start(launch, tmp_path, "update", 3600.0)
    process.says("it hangs")
    process.signal(signal.SIGTERM)
    # That the first has been taken shows where the waiting for the rest begins.
    until(lambda: _handled(process), "the first signal to be taken")
    process.signal(signal.SIGTERM)
    assert process.status() == -signal.SIGTERM


def _handled(process: Process) -> bool:
    """Whether SIGTERM ends the process by itself: its handler is gone."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = int(status.split("SigCgt:")[1].split()[0], 16)
    return not caught >> (signal.SIGTERM - 1) & 1
