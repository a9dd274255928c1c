"""Ctrl-C, SIGTERM and SIGKILL, and how a run goes on after them."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from learner.training.checkpoint import Checkpoint, Checkpoints
from tests.integration.commands import read_json, read_metrics
from tests.integration.processes import Launcher, Process, options, until

pytestmark = pytest.mark.timeout(240)

MY_FILE = """
import gymnasium

def make_env():
    return gymnasium.make("CartPole-v1")
"""


def newest(logdir: Path) -> Checkpoint | None:
    return Checkpoints(logdir / "checkpoints", 3).load_latest()


def newer_checkpoint(process: Process, logdir: Path, version: int) -> Checkpoint:
    """Wait until the run has saved what came after `version`."""

    def found() -> Checkpoint | None:
        assert process.running, process.stderr
        checkpoint = newest(logdir)
        return checkpoint if checkpoint and checkpoint.version > version else None

    return until(found, lambda: f"a checkpoint after version {version}; found {process.stderr}")


def train(launch: Launcher, folder: Path, logdir: str, **more: object) -> Process:
    """A run, started in the folder of the user's own environment."""
    chosen = options(
        env="my_file:make_env",
        logdir=logdir,
        num_actors=2,
        envs_per_actor=1,
        total_steps=10_000_000,
        checkpoint_interval_seconds=0.2,
        log_interval_seconds=0.2,
        drain_seconds=60.0,
        **more,
    )
    return launch.python("-m", "learner", "train", *chosen, cwd=folder)


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Under nohup SIGHUP is ignored, and children inherit that."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_file.py").write_text(MY_FILE)
    return tmp_path


def test_signals_while_it_starts(launch: Launcher, folder: Path) -> None:
    statuses = {signal.SIGINT: 130, signal.SIGTERM: 0}
    started = {number: train(launch, folder, f"run{number}") for number in statuses}
    statuses |= {signal.SIGHUP: 143}
    started[signal.SIGHUP] = train(launch, folder, "hup", interrupted_status=143)
    for number, process in started.items():
        process.says("listening on")
        process.signal(number)
    for number, process in started.items():
        assert process.status() == statuses[number], process.stderr
        assert launch.left_by(process) == []
        assert "Traceback" not in process.stderr
        name = signal.Signals(number).name
        assert f"{name}: saving and ending; a second signal ends the process at once" in process.stderr
        last = process.stderr.splitlines()[-1]
        assert last.endswith(f"ended by {name} before the first step: there is nothing to save")
    assert not list(folder.glob("*/config.toml")), "expected nothing of runs that never began"


def test_signals_and_resumption(launch: Launcher, folder: Path) -> None:
    logdir = folder / "run"
    first = train(launch, folder, "run")
    newer_checkpoint(first, logdir, 0)
    first.signal(signal.SIGINT)
    assert first.status() == 130, first.stderr
    assert launch.left_by(first) == []
    assert "Traceback" not in first.stderr
    saved, summary = newest(logdir), read_json(logdir / "summary.json")
    assert saved is not None
    assert saved.version == summary["policy_version"] > 0
    assert saved.metadata["episodes"]["env_steps"] == summary["env_steps"] > 0
    assert "SIGINT: saving and ending; a second signal ends the process at once" in first.stderr
    assert first.stderr.splitlines()[-1].endswith(
        f"ended by SIGINT at step {summary['env_steps']:,} of 10,000,000; saved; "
        f"the same command with --logdir {logdir} goes on"
    )

    second = train(launch, folder, "run")
    said = f"resuming {logdir} at environment step {summary['env_steps']:,} (version {saved.version:,})"
    second.says(re.escape(said))
    killed_at = newer_checkpoint(second, logdir, saved.version)
    assert len(launch.left_by(second)) == 2
    second.signal(signal.SIGKILL)
    assert second.status() == -signal.SIGKILL

    # Its actors look for it for a while; the run may go on in the meantime.
    third = train(launch, folder, "run")
    version = int(third.says(r"resuming .*run at .* \(version ([\d,]+)\)")[1].replace(",", ""))
    assert version >= killed_at.version
    until(lambda: not launch.left_by(second), "the end of the killed learner's actors", seconds=15)
    newer_checkpoint(third, logdir, version)
    third.signal(signal.SIGTERM)
    assert third.status() == 0, third.stderr
    assert launch.left_by(third) == []
    final, last = newest(logdir), read_json(logdir / "summary.json")
    assert final is not None
    assert final.version == last["policy_version"] > version
    assert last["env_steps"] > summary["env_steps"]
    assert last["episodes"] > summary["episodes"]
    assert last["seconds"] > summary["seconds"]
    assert read_metrics(logdir)[-1]["env_steps"] <= last["env_steps"]
