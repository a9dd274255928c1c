"""Whatever part fails, `seedbed train` ends within seconds, says why, and leaves nothing behind."""

import re
from collections.abc import Iterator

import pytest

from tests.integration.processes import Launcher, Process, options

pytestmark = pytest.mark.timeout(240)

SCRIPT = """
import sys
part, *arguments = sys.argv[1:]
from learner.__main__ import main
from learner.experience.unrolls import UnrollPool
from learner.serving.inference import InferenceWorker
from learner.telemetry.run_directory import RunDirectory
from learner.training.weights import PublishedWeights

target, name = {
    "inference": (InferenceWorker, "_record"),
    "event loop": (InferenceWorker, "_record"),
    "prefetch": (UnrollPool, "gather"),
    "training": (PublishedWeights, "publish"),
    "reporter": (RunDirectory, "write_metrics"),
}[part]
good, calls = getattr(target, name), 0

def bad(*arguments):
    global calls
    calls += 1
    if calls > 3:
        raise ZeroDivisionError(f"the wheel of {part} came off")
    return good(*arguments)

setattr(target, name, bad)
sys.exit(main(arguments))
"""

ENVIRONMENT = """
import gymnasium

class Failing(gymnasium.Wrapper):
    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps > 100:
            raise ZeroDivisionError("the wheel of step came off")
        return self.env.step(action)

def make_env():
    return Failing(gymnasium.make("CartPole-v1"))
"""

FAILED = {
    "inference": "inference thread 0 failed: ZeroDivisionError: the wheel of inference came off",
    "event loop": "event loop failed: ZeroDivisionError: the wheel of event loop came off",
    "prefetch": "prefetch thread failed: ZeroDivisionError: the wheel of prefetch came off",
    "training": "ZeroDivisionError: the wheel of training came off",
    "reporter": "reporter failed: ZeroDivisionError: the wheel of reporter came off",
    "environment": "environment my_file:make_env failed in step(): ZeroDivisionError: the wheel of step",
}


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path_factory.mktemp("processes"))
    try:
        yield launcher
    finally:
        launcher.end_all()


@pytest.fixture(scope="module")
def started(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Process]:
    """A run for each part, all at once: most of their time is TensorFlow's import."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "my_file.py").write_text(ENVIRONMENT)
    started = {}
    for part in FAILED:
        chosen = options(
            env="my_file:make_env" if part == "environment" else "CartPole-v1",
            logdir=folder / part,
            num_actors=1,
            envs_per_actor=2,
            total_steps=10_000_000,
            log_interval_seconds=0.2,
            policy_engine="tensorflow" if part == "inference" else "numpy",
        )
        if part == "environment":
            started[part] = launcher.seedbed("train", *chosen, cwd=folder)
        else:
            started[part] = launcher.python("-c", SCRIPT, part, "train", *chosen)
    return started


@pytest.mark.parametrize("part", FAILED)
def test_failure_ends_the_run(part: str, launcher: Launcher, started: dict[str, Process]) -> None:
    process = started[part]
    process.says("brings 2 environments")
    assert process.status(seconds=40) == 1, process.stderr
    assert launcher.left_by(process) == []
    assert process.stderr.count(FAILED[part]) >= 1, process.stderr
    assert re.search(r"INFO failed at step [\d,]+ of 10,000,000; (not )?saved\n", process.stderr)
    assert "Traceback" in process.stderr, "expected the way to the failure"
    assert process.stdout == ""
