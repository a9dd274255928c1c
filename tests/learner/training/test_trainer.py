"""The training loop: publish after every update, measure the lag, stop when told to."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from learner.agents.agent import PRIORITIES
from learner.experience.prefetch import Prepared
from learner.experience.trajectory import Batch
from learner.telemetry.statistics import BusyClock
from learner.training.trainer import Trainer
from learner.training.weights import PublishedWeights


class Tensor(np.ndarray):
    """An array that is asked for itself as a tensor is."""

    def numpy(self) -> np.ndarray:
        return np.asarray(self)


def batch_of(versions: Any) -> Batch:
    """A batch with these acting versions, [T+1, B], and nothing else."""
    nothing = np.zeros(())
    return Batch(
        observation=(),
        reward=nothing,
        first=nothing,
        terminated=nothing,
        truncated=nothing,
        record={},
        version=np.asarray(versions, np.int64).view(Tensor),
        initial_state={},
        weight=nothing,
    )


class Story:
    """A trainer, and what happened around it in order."""

    def __init__(
        self,
        batches: list[Batch],
        *,
        version: int = 0,
        stop_at: int | None = None,
        update: Callable[[Batch], Mapping[str, Any]] = lambda batch: {},
    ) -> None:
        self.events: list[object] = []
        self.replies: list[object] = []
        self.progress: list[float] = []
        self.now = 0.0
        self._update = update
        self._stop_at = stop_at
        self.weights = PublishedWeights(lambda: self.events.append("copy"), version)
        self.clock = BusyClock(lambda: self.now)
        self.waiting = BusyClock(lambda: self.now)
        self.trainer = Trainer(
            self._updated,
            self._taken(batches),
            self.weights,
            self.clock,
            self.waiting,
            progress=lambda: self.now / 100,
            version=version,
            after_update=self._after,
        )

    def _taken(self, batches: list[Batch]) -> Iterator[Prepared]:
        for number, batch in enumerate(batches):
            self.now += 3.0
            self.events.append(f"batch {number}")
            yield Prepared(batch, self.replies.append)

    def _updated(self, batch: Batch, progress: float) -> Mapping[str, Any]:
        self.now += 1.0
        self.progress.append(progress)
        self.events.append("update")
        return self._update(batch)

    def _after(self, version: int) -> bool:
        self.events.append(("after", version, self.weights.version))
        return version != self._stop_at


def test_each_version_is_published_after_its_update() -> None:
    story = Story([batch_of([[0], [0]])] * 2)
    story.trainer.run()
    assert story.events == [
        *("batch 0", "update", "copy", ("after", 1, 1)),
        *("batch 1", "update", "copy", ("after", 2, 2)),
    ]
    assert story.trainer.version == story.weights.version == 2
    # 3 seconds for each batch, 1 for each update: what `Story` makes of them.
    assert story.trainer.statistics() == {"version": 2, "busy_seconds": 2, "data_wait_seconds": 6}


def test_batch_hears_its_new_priorities_which_are_no_scalar() -> None:
    outputs: list[dict[str, Any]] = [{"loss": 1.0}, {PRIORITIES: np.array([2.0]).view(Tensor)}]
    story = Story([batch_of([[0], [0]])] * 2, update=lambda batch: outputs.pop(0))
    story.trainer.run()
    assert story.replies == [None, np.array([2.0])]
    assert story.trainer.scalars() == {}


def test_versions_go_on_from_a_checkpoint() -> None:
    story = Story([batch_of([[41], [41]])], version=41)
    story.trainer.run()
    assert story.events[-1] == ("after", 42, 42)


def test_stops_when_told_to_and_takes_no_further_batch() -> None:
    story = Story([batch_of([[0], [0]])] * 5, stop_at=2)
    story.trainer.run()
    assert story.trainer.version == 2
    assert [event for event in story.events if "batch" in str(event)] == ["batch 0", "batch 1"]


def test_each_update_hears_how_far_the_run_is() -> None:
    story = Story([batch_of([[0], [0]])] * 3)
    story.trainer.run()
    assert story.progress == [0.03, 0.07, 0.11]


def test_no_batches_end_it_at_once() -> None:
    story = Story([])
    story.trainer.run()
    assert story.events == []
    assert story.trainer.version == 0
    assert story.trainer.policy_lag.mean() is None
    assert story.trainer.scalars() == {}


def test_lag_is_how_many_versions_the_acting_was_behind_without_the_bootstrap_row() -> None:
    story = Story([batch_of([[3, 5], [4, 5], [900, 900]])], version=10)
    story.trainer.run()
    assert story.trainer.policy_lag.mean() == 10 - (3 + 5 + 4 + 5) / 4


def test_lag_is_averaged_over_batches_since_the_last_reading() -> None:
    story = Story([batch_of([[0], [0]]), batch_of([[0], [0]]), batch_of([[0], [0]])])
    story.trainer.run()
    assert story.trainer.policy_lag.mean() == (0 + 1 + 2) / 3
    assert story.trainer.policy_lag.mean() is None


def test_scalars_are_those_of_the_last_update() -> None:
    losses = iter([np.float32(0.5), np.float32(0.25)])
    story = Story([batch_of([[0], [0]])] * 2, update=lambda batch: {"loss": next(losses)})
    story.trainer.run()
    assert story.trainer.scalars() == {"loss": 0.25}
    assert type(story.trainer.scalars()["loss"]) is float


def test_waiting_for_batches_is_not_work() -> None:
    story = Story([batch_of([[0], [0]])] * 4)
    story.trainer.run()
    assert story.clock.busy_fraction() == 1 / (1 + 3)


def test_failed_update_is_raised_and_never_published() -> None:
    def diverge(batch: Batch) -> Mapping[str, Any]:
        raise FloatingPointError("loss is nan")

    story = Story([batch_of([[0], [0]])], update=diverge)
    with pytest.raises(FloatingPointError, match="loss is nan"):
        story.trainer.run()
    assert story.events == ["batch 0", "update"]
    assert story.trainer.version == story.weights.version == 0


def test_each_update_and_its_lag_are_measured() -> None:
    story = Story([batch_of([[0, 0], [9, 9]]), batch_of([[1, 0], [9, 9]])], version=1)
    story.trainer.run()
    spreads = story.trainer.spreads()
    lags = spreads["policy_lag"]
    # 1 - 0, and 2 - 0.5; the last row made no transition.
    assert (lags.total, lags.bounds[:3], lags.counts[:3]) == (2.5, (0, 1, 2), (0, 1, 1))
    assert sum(spreads["update"].counts) == 2
