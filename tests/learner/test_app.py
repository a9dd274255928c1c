"""What the learner makes of its parts' numbers."""

import logging
from pathlib import Path

import pytest

from learner.app import Learner
from learner.config import LearnerOptions
from learner.telemetry.statistics import Registry
from learner.training.checkpoint import Checkpoints
from protos.errors import TrainingFailure
from tests.fakes import SPEC

SERVING = {
    "actor_seconds_waiting": 0.0,
    "actor_seconds_acting": 0.0,
    "streams": 0.0,
    "environments": 0.0,
}


def make_learner(folder: Path) -> Learner:
    return Learner(
        LearnerOptions(max_environments=2, hidden_sizes=(4,), unroll_length=2, batch_size=1),
        SPEC,
        checkpoints=Checkpoints(folder, 1),
        best_checkpoints=Checkpoints(folder, 1),
        restored=Checkpoints(folder, 1).load_latest(),
        registry=Registry(),
    )


@pytest.fixture
def learner(tmp_path: Path) -> Learner:
    return make_learner(tmp_path)


def after(learner: Learner, version: int, skipped: float) -> None:
    learner.trainer.version = version
    learner.trainer._scalars = {"loss": 1.0, "skipped_updates": skipped}
    learner.report(SERVING)


def test_updates_that_are_all_skipped_end_the_run(learner: Learner) -> None:
    after(learner, 10, 0)
    with pytest.raises(TrainingFailure, match="the last 12 updates were skipped"):
        after(learner, 22, 12)


def test_some_skipped_updates_are_a_warning(learner: Learner, caplog: pytest.LogCaptureFixture) -> None:
    after(learner, 10, 0)
    with caplog.at_level(logging.WARNING):
        after(learner, 30, 3)
    assert caplog.messages == ["3 of 20 updates were skipped: their loss or gradient was not finite"]


def test_few_updates_are_not_judged(learner: Learner) -> None:
    after(learner, 4, 4)
    after(learner, 4, 4)
    assert learner.trainer.version == 4


def test_a_resumed_run_is_not_judged_by_what_was_skipped_before(
    learner: Learner, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learner.trainer.version = 100
    assert learner.save()
    resumed = make_learner(tmp_path)
    resumed.report(SERVING)
    with caplog.at_level(logging.WARNING):
        after(resumed, 120, 50)
    assert caplog.messages == []
    with pytest.raises(TrainingFailure, match="the last 12 updates were skipped"):
        after(resumed, 132, 62)


def test_a_whole_run_without_an_update_to_judge_reports(learner: Learner) -> None:
    assert learner.report(SERVING).policy_version == 0
