"""What the learner makes of its parts' numbers."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.app import Learner, RunFiles
from learner.config import EvaluateOptions, ExportOptions, LearnerOptions
from learner.evaluation import evaluate
from learner.experience.trajectory import Batch
from learner.stored_run import export
from learner.telemetry.exported import METRICS, Kind
from learner.telemetry.run_directory import RunDirectory
from learner.telemetry.statistics import Registry
from learner.training.checkpoint import Checkpoints
from learner.training.skipped import SKIPPED
from protos.errors import ConfigError
from tests.fakes import SPEC

SERVING = {
    "actor_seconds_waiting": 0.0,
    "actor_seconds_acting": 0.0,
    "event_loop_cpu_seconds": 0.0,
    "streams": 0.0,
    "environments": 0.0,
}

EMPTY = Batch((), *([np.zeros(0)] * 4), {}, np.zeros(0), {}, np.zeros(0))


def run_files(folder: Path) -> RunFiles:
    return RunFiles(
        Checkpoints(folder, 1), Checkpoints(folder / "best", 1), folder / "offending_batch.npz"
    )


class Second:
    """A group of two whose first learner has restored a run of so many steps; this one is the other."""

    size = 2
    index = 1

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def from_first(self, values: np.ndarray) -> np.ndarray:
        return values

    def share(self, variables: Sequence[Any]) -> None:
        pass

    def mean(self, tensors: Sequence[Any]) -> Sequence[Any]:
        return tensors

    def sum(self, values: np.ndarray) -> np.ndarray:
        return values + self._steps

    def guarded(self, function: Any) -> Any:
        return function


def make_learner(folder: Path, group: Any = None) -> Learner:
    return Learner(
        LearnerOptions(max_environments=2, hidden_sizes=(4,), unroll_length=2, batch_size=1),
        SPEC,
        run_files(folder),
        restored=Checkpoints(folder, 1).load_latest(),
        registry=Registry(),
        group=group,
    )


@pytest.fixture
def learner(tmp_path: Path) -> Learner:
    return make_learner(tmp_path)


def note(learner: Learner, *totals: int) -> None:
    """Updates after which so many were skipped in all, and a report."""
    for total in totals:
        learner._skipped.note(EMPTY, {SKIPPED: total})
    learner.report(SERVING)


def test_some_skipped_updates_are_a_warning(learner: Learner, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        note(learner, 0, 0, 1, 1, 2)
        note(learner, 2, 2)
        note(learner, 2, 3)
    assert caplog.messages == [
        "2 of 5 updates were skipped: their loss or gradient was not finite",
        "1 of 2 updates were skipped: their loss or gradient was not finite",
    ]


def test_all_of_a_group_know_how_far_a_resumed_run_is(tmp_path: Path) -> None:
    learner = make_learner(tmp_path, Second(12_345))
    assert learner.report(SERVING).env_steps == 12_345
    assert learner.episodes.own_env_steps == 0


def test_what_cannot_fit_is_refused_before_the_agent_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("the agent was made")

    monkeypatch.setattr("learner.app.make_agent", refuse)
    monkeypatch.setattr("learner.memory_limit.memory_limit", lambda: 10)
    with pytest.raises(ConfigError, match="policy calls for 2 environments, of"):
        make_learner(tmp_path)


def test_a_resumed_run_is_not_judged_by_what_was_skipped_before(
    learner: Learner, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learner.trainer.version = 100
    assert learner.save()
    resumed = make_learner(tmp_path)
    with caplog.at_level(logging.WARNING):
        note(resumed, 50)
    assert caplog.messages == []


def test_a_resumed_run_uses_no_random_number_of_acting_again(learner: Learner, tmp_path: Path) -> None:
    learner.trainer.version = 100
    learner._acting.policy.number_from(12345)
    assert learner.save()
    assert make_learner(tmp_path)._acting.policy.calls == 12345


@pytest.fixture
def run_without_env(tmp_path: Path) -> Path:
    """The directory of a run whose environment only its actors knew."""
    options = LearnerOptions(max_environments=2, hidden_sizes=(4,), unroll_length=2, batch_size=1)
    RunDirectory(tmp_path / "run", options).close()
    learner = make_learner(tmp_path / "run" / "checkpoints")
    learner.trainer.version = 100
    assert learner.save()
    return tmp_path / "run"


def test_a_run_that_does_not_name_its_environment_is_evaluated_on_one_that_is_said(
    run_without_env: Path,
) -> None:
    with pytest.raises(ConfigError, match="--env is required: this run was started without one"):
        evaluate(EvaluateOptions(logdir=str(run_without_env)))


def test_an_export_overwrites_nothing(run_without_env: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("x")
    with pytest.raises(ConfigError, match=rf"--out {out}: expected a new or empty folder"):
        export(ExportOptions(logdir=str(run_without_env), out=str(out)))
    assert [path.name for path in out.iterdir()] == ["mine"]


def test_a_whole_run_without_an_update_to_judge_reports(learner: Learner) -> None:
    assert learner.report(SERVING).policy_version == 0


def test_the_parts_report_what_is_exported_of_them(tmp_path: Path) -> None:
    registry = Registry()
    options = LearnerOptions(
        agent="r2d2", max_environments=2, hidden_sizes=(4,), lstm_size=4, eval_interval=100
    )
    learner = Learner(
        options,
        SPEC,
        run_files(tmp_path),
        restored=None,
        registry=registry,
    )
    learner.trainer.version = 1
    assert learner.save()
    elsewhere = {"serving", "actors", "recording"}
    after_an_evaluation = {"evaluation/mean_return"}
    numbers, spreads = registry.snapshot(), registry.spreads()
    missing = {
        source
        for metric in METRICS
        for source in (metric.source.format(value) for value in metric.values or [""])
        if "/" in source and source.partition("/")[0] not in elsewhere
        if source not in (spreads if metric.kind is Kind.HISTOGRAM else numbers)
    }
    assert missing == after_an_evaluation
