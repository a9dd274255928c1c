"""An actor that is slow, stopped or killed holds back nobody else."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from learner.config import LearnerOptions
from tests.integration.processes import Launcher, Process, options, until
from tests.integration.serving import ServingLearner

ENV = "tests.integration.numbered_env:NumberedEnv"
MANY = 300
"""Steps by which an actor shows that it goes on."""


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServingLearner]:
    # Batches of 8 environments that never come together: 5 are connected at most.
    chosen = LearnerOptions(unroll_length=4, batch_size=2, max_environments=16, inference_batch_size=8)
    with ServingLearner(f"unix:{tmp_path}/s", tmp_path, monkeypatch, chosen) as made:
        made.train_in_background()
        yield made


def start_actor(launch: Launcher, tmp_path: Path, number: int, **environ: str) -> Process:
    """An actor of one environment."""
    arguments = options(server=f"unix:{tmp_path}/s", env=ENV, num_envs=1)
    return launch.actor(*arguments, environ={"NUMBER": str(number), **environ})


def expect_steps(serving: ServingLearner, numbers: list[int], more: int) -> None:
    """Wait until each of these environments has made so many more steps."""
    goals = {number: serving.steps[number] + more for number in numbers}
    until(
        lambda: all(serving.steps[number] >= goal for number, goal in goals.items()),
        lambda: f"steps {goals}, found {dict(serving.steps)}",
    )


def test_slow_stopped_and_killed_actors(
    serving: ServingLearner, launch: Launcher, tmp_path: Path
) -> None:
    for number in (1, 2):
        start_actor(launch, tmp_path, number)
    expect_steps(serving, [1, 2], MANY)

    start_actor(launch, tmp_path, 3, HANGS_AT="20")
    stopped = start_actor(launch, tmp_path, 4)
    killed = start_actor(launch, tmp_path, 5)
    expect_steps(serving, [3, 4, 5], 19)
    stopped.signal(signal.SIGSTOP)
    killed.signal(signal.SIGKILL)
    assert killed.status() == -signal.SIGKILL
    assert stopped.running

    at_rest = serving.steps[4], serving.steps[5]
    expect_steps(serving, [1, 2], MANY)
    assert serving.steps[3] == 21, "two first rows, and the 19 steps before it hung"
    # What was on the wire when they stopped may still have been read.
    assert serving.steps[4] <= at_rest[0] + 1
    assert serving.steps[5] <= at_rest[1] + 1

    stopped.signal(signal.SIGCONT)
    expect_steps(serving, [1, 2, 4], MANY)
