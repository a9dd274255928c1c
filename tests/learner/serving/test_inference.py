"""The worker around the policy call: what it does with a batch, and in which order."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from learner.experience.unrolls import Steps
from learner.flags import LeaseEnd
from learner.serving.batcher import Batcher, InferenceBatch, Request
from learner.serving.inference import CALLS_PER_TIMING, InferenceWorker
from learner.serving.policy_call import PolicyAnswer, PolicyFunction
from learner.telemetry.episodes import EpisodeTracker
from learner.telemetry.statistics import BusyClock, Durations
from learner.training.weights import PublishedWeights
from protos import inference_pb2 as pb
from tests.fakes import SPEC, observation
from tests.learner.serving.test_policy_call import SLOTS, make_batch, make_function


class Story:
    """A worker over given batches, and what happened in which order. It is the worker's experience."""

    def __init__(self, keep: Callable[[Steps], object] = lambda steps: None, room: bool = True) -> None:
        self.events: list[tuple[str, Any]] = []
        self.weights = PublishedWeights(lambda: None, version=5)
        self.clock = BusyClock()
        self.latency = Durations()
        self.episodes = EpisodeTracker(SLOTS)
        self._keep = keep
        self._room = room

    def run(self, *batches: InferenceBatch, policy: Any = None) -> InferenceWorker:
        worker = self._worker(policy or self.function())
        worker.run(batches)
        return worker

    def at_once(self, batcher: Batcher) -> bool:
        return self._worker(self.function()).act_at_once(batcher)

    def function(self) -> PolicyFunction:
        return make_function(weights=self.weights)

    def _worker(self, policy: Any) -> InferenceWorker:
        return InferenceWorker(policy, self.clock, self.latency, self.episodes, self)

    def batcher(self, *slots: int, max_rows: int = 4) -> Batcher:
        """With one request of a row for each of the slots."""
        batcher = Batcher(SPEC.observation, max_rows=max_rows, scratch_slot=SLOTS)
        for slot in slots:
            batcher.submit(
                Request(
                    slots=np.array([slot], np.int32),
                    observation=[observation(10 * slot)],
                    reward=np.zeros(1, np.float32),
                    flags=np.full(1, pb.FIRST, np.uint8),
                    reply=lambda actions, version: self.events.append(
                        ("answered", (actions.tolist(), version))
                    ),
                )
            )
        return batcher

    def batch(self, slots: list[int], numbers: list[float], flags: int = pb.FIRST) -> InferenceBatch:
        def reply(actions: np.ndarray, version: int) -> None:
            self.events.append(("answered", (actions.tolist(), version)))

        return make_batch(slots, numbers, flags, reply)

    def wait_for_room(self) -> bool:
        self.events.append(("room", self._room))
        return self._room

    def has_room(self) -> bool:
        return self._room

    def append(self, steps: Steps) -> None:
        self.events.append(("recorded", steps.slots.tolist()))
        self._keep(steps)

    def drop(self, slots: np.ndarray, reason: LeaseEnd) -> None:
        raise AssertionError("leases end on the event loop")


def test_each_batch_is_recorded_before_it_is_answered() -> None:
    story = Story()
    story.run(story.batch([1, 2], [10, 20]), story.batch([3], [30]))
    assert story.events == [
        ("room", True),
        ("recorded", [1, 2]),
        ("answered", ([10, 20], 5)),
        ("room", True),
        ("recorded", [3]),
        ("answered", ([30], 5)),
    ]


def test_weights_are_chosen_after_the_waiting_for_room() -> None:
    story = Story()

    def wait() -> bool:
        story.weights.publish(6)
        return True

    story.wait_for_room = wait  # type: ignore[method-assign]
    story.run(story.batch([1], [10]))
    assert story.events == [("recorded", [1]), ("answered", ([10], 6))]


def test_what_is_recorded_is_the_batch_without_its_padding() -> None:
    kept: list[Steps] = []
    story = Story(kept.append)
    story.run(story.batch([4, 2, 0, 1, 3], [1, 2, 3, 4, 5]))
    (steps,) = kept
    assert steps.slots.tolist() == [4, 2, 0, 1, 3]
    assert steps.slots.dtype == np.intp
    np.testing.assert_array_equal(steps.observation[0], observation(1, 2, 3, 4, 5))
    assert steps.reward.tolist() == [0] * 5
    assert steps.flags.tolist() == [pb.FIRST] * 5
    assert steps.record["slot"].tolist() == [4, 2, 0, 1, 3]
    assert steps.version == 5
    assert steps.state_before(np.arange(5))["sum"].shape == (5, 2)


def test_episodes_are_counted_before_their_steps_are_stored() -> None:
    counted: list[tuple[int, int]] = []
    story = Story(lambda steps: counted.append((story.episodes.env_steps, story.episodes.episodes)))
    story.run(
        story.batch([1, 2], [10, 20]),
        story.batch([2, 1], [10, 20], 0),
        story.batch([1], [30], pb.TERMINATED),
    )
    assert counted == [(0, 0), (2, 0), (3, 1)]


def test_it_ends_unanswered_when_nothing_can_be_recorded_any_more() -> None:
    story = Story(room=False)
    story.run(story.batch([1], [10]), story.batch([2], [20]))
    assert story.events == [("room", False)]
    assert story.episodes.env_steps == story.episodes.episodes == 0


def test_the_weights_are_free_while_recording() -> None:
    # Would deadlock if they were still held.
    story = Story(lambda steps: story.weights.publish(6))
    story.run(story.batch([1], [10]))
    assert story.events[-1] == ("answered", ([10], 5))
    assert story.weights.version == 6


def test_waiting_for_room_is_not_work() -> None:
    now = [0.0]
    story = Story(lambda steps: now.__setitem__(0, now[0] + 1.0))
    story.clock = BusyClock(lambda: now[0])
    story.wait_for_room = lambda: now.__setitem__(0, now[0] + 3.0) or True  # type: ignore[method-assign]
    story.run(story.batch([1], [10]), story.batch([2], [20]))
    assert story.clock.busy_fraction() == 1 / (1 + 3)


def test_waiting_for_a_publication_is_not_work() -> None:
    now = [0.0]

    class Slow(PublishedWeights):
        def __enter__(self) -> int:
            now[0] += 3.0
            return super().__enter__()

    story = Story(lambda steps: now.__setitem__(0, now[0] + 1.0))
    story.weights = Slow(lambda: None, version=5)
    story.clock = BusyClock(lambda: now[0])
    story.run(story.batch([1], [10]), story.batch([2], [20]))
    assert story.clock.busy_fraction() == 1 / (1 + 3)


def test_load_is_the_time_that_the_rows_need_in_efficient_calls() -> None:
    now = [0.0]
    story = Story(lambda steps: now.__setitem__(0, now[0] + 1.0))
    story.clock = BusyClock(lambda: now[0])
    story.wait_for_room = lambda: now.__setitem__(0, now[0] + 3.0) or True  # type: ignore[method-assign]
    function = story.function()
    function.efficiency = [0.0, 0.25, 0.5]
    worker = story.run(story.batch([1], [10]), story.batch([2, 3], [20, 30]), policy=function)
    # A second of work each, whatever was waited for.
    assert worker.load_seconds == 0.25 + 0.5


def test_a_policy_that_fails_ends_the_worker_and_holds_nothing() -> None:
    class Policy:
        def still_weights(self) -> PublishedWeights:
            return story.weights

        def __call__(self, batch: InferenceBatch) -> PolicyAnswer:
            raise ValueError("boom")

    story = Story()
    with pytest.raises(ValueError, match="boom"):
        story.run(story.batch([1], [10]), policy=Policy())
    assert story.events == [("room", True)]
    story.weights.publish(6)


def test_who_submits_can_have_all_that_waits_answered_at_once() -> None:
    story = Story()
    batcher = story.batcher(1, 2, 3, max_rows=2)
    assert story.at_once(batcher)
    # Answered before it is recorded: actors go on meanwhile.
    assert story.events == [
        ("answered", ([10], 5)),
        ("answered", ([20], 5)),
        ("recorded", [1, 2]),
        ("answered", ([30], 5)),
        ("recorded", [3]),
    ]
    assert story.at_once(batcher), "there is nothing left"
    assert len(story.events) == 5


def test_without_room_nothing_is_taken() -> None:
    story = Story(room=False)
    batcher = story.batcher(1)
    assert not story.at_once(batcher)
    assert story.events == []
    assert batcher.statistics()["rows_waiting"] == 1


def test_one_policy_call_of_many_is_timed_and_speaks_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Calls of one row and of three take turns, of which the larger are better used."""
    story = Story()
    policy = story.function()
    policy.efficiency = [0.0, 0.25, 0.0, 0.75, 1.0]
    now = 0.0
    monkeypatch.setattr("learner.serving.inference.time.thread_time", lambda: now)

    def timed(batch: InferenceBatch) -> PolicyAnswer:
        nonlocal now
        now += batch.size
        return policy(batch)

    worker = story._worker(timed)
    sizes = [1, 3] * CALLS_PER_TIMING
    for size in sizes:
        assert worker.act_at_once(story.batcher(*range(size)))

    # The first call is timed, of one row, and the one that is as many calls later, of three.
    assert worker.cpu_seconds == CALLS_PER_TIMING * (1 + 3)
    assert worker.cpu_load_seconds == CALLS_PER_TIMING * (1 * 0.25 + 3 * 0.75)
    assert now == sum(sizes) == worker.cpu_seconds
