"""A disk that is full, for real: what is lost, what goes on, and what comes back once there is room."""

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from learner.training.checkpoint import Checkpoints
from tests.integration.commands import read_metrics
from tests.integration.processes import ROOT, Launcher, Process, options, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

FULL = r"No space left on device"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"needs the right to mount: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Fill up the file system; remove the file to make room."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (2**20, 2**12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass
    return ballast


def version(logdir: Path) -> int:
    """Of the newest checkpoint; 0 if there is none."""
    checkpoint = Checkpoints(logdir / "checkpoints", 3).load_latest()
    return checkpoint.version if checkpoint else 0


def steps(process: Process) -> int:
    """Environment steps, as the display says."""
    said = re.findall(r"INFO step ([\d,]+) of", process.stderr)
    return int(said[-1].replace(",", "")) if said else 0


def test_a_full_disk_costs_what_is_written_and_nothing_else(launch: Launcher, disk: Path) -> None:
    logdir = disk / "run"
    chosen = options(
        env="CartPole-v1", logdir=logdir, num_actors=1, envs_per_actor=2, total_steps=10_000_000,
        hidden_sizes="[128,128]", checkpoint_interval_seconds=0.5, log_interval_seconds=0.2,
        progress="plain", record=disk / "recording",
    )  # fmt: skip
    process = launch.python("-m", "learner", "train", *chosen, cwd=ROOT)
    until(lambda: version(logdir), lambda: f"a checkpoint; found {process.stderr}")

    ballast = fill(disk)
    for said in (
        rf"checkpoint .*step_\d+\.npz cannot be written \({FULL}\): training goes on",
        rf"metrics\.jsonl cannot be written \({FULL}\): training goes on",
        rf"recording cannot be written \({FULL}\): the recording ends here, serving goes on",
        rf"TensorBoard events in .* cannot be written \(.*{FULL}\): training goes on without them",
    ):
        process.says(said)
    kept, made = version(logdir), steps(process)
    until(lambda: steps(process) > made + 1000, "training that goes on")
    assert version(logdir) == kept

    ballast.unlink()
    process.says(r"metrics\.jsonl can be written again")
    until(lambda: version(logdir) > kept, "a checkpoint, now that there is room")
    lines = read_metrics(logdir)
    assert [line["env_steps"] for line in lines] == sorted(line["env_steps"] for line in lines)

    ballast = fill(disk)
    process.signal(signal.SIGTERM)
    assert process.status() == 1, process.stderr
    assert "the run's last state could not be saved in" in process.stderr
    assert re.search(rf"learning_curve\.png cannot be written: .*{FULL}", process.stderr)
    assert re.search(rf"summary\.json cannot be written: .*{FULL}", process.stderr)
    assert "Traceback" not in process.stderr
    assert launch.left_by(process) == []

    ballast.unlink()
    saved = version(logdir)
    assert saved > kept
    again = launch.python("-m", "learner", "train", *chosen, cwd=ROOT)
    assert again.says(r"resuming .*run at .* \(version ([\d,]+)\)")[1].replace(",", "") == str(saved)
    again.signal(signal.SIGTERM)
    assert again.status() == 0, again.stderr


def test_a_run_is_not_begun_on_a_full_disk(launch: Launcher, disk: Path) -> None:
    fill(disk)
    chosen = options(env="CartPole-v1", logdir=disk / "run", num_actors=1)
    process = launch.python("-m", "learner", "train", *chosen, cwd=ROOT)
    assert process.status() == 2, process.stderr
    assert re.search(rf"--logdir .* cannot be used: .*{FULL}", process.stderr)
    assert "Traceback" not in process.stderr
