"""The end of a run, whose last evaluation may take too long."""

import logging
from pathlib import Path

import numpy as np
import pytest

from learner import evaluator
from learner.agents.build import make_agent
from learner.config import LearnerOptions
from learner.evaluator import Evaluator, Snapshot
from learner.training.checkpoint import Checkpoints
from tests.fakes import SPEC


def test_a_round_that_does_not_end_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluator, "LAST_ROUND_SECONDS", 0.0)
    options = LearnerOptions(hidden_sizes=(4,), eval_interval=10, eval_envs=2)
    evaluating = Evaluator(
        options,
        SPEC,
        make_agent(options, SPEC, seed=1),
        Checkpoints(tmp_path, 1),
        lambda: Snapshot({"weights": np.zeros(1)}, {}),
    )
    lane = evaluating.lane()
    lane.slots.lease(2)
    assert lane.slots.lease(2).size == 2, "an actor's heir finds room beside its former self"
    evaluating.after_update(env_steps=10, seconds=1.0, version=1)
    assert evaluating.evaluations.under_way

    evaluating.last_round(env_steps=20, seconds=2.0, version=2, stopped=lambda: False)

    assert evaluating.evaluations.results() == []
    assert caplog.record_tuples == [
        (
            "learner.evaluator",
            logging.WARNING,
            "the last evaluation has not ended, and is left out",
        )
    ]
    evaluating.stop()
