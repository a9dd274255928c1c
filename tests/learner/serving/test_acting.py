"""The acting half, put together: from a lane's requests to their answers."""

import queue
from collections.abc import Iterator

import numpy as np
import pytest

from learner.experience.unrolls import Steps
from learner.flags import LEASE_START, LeaseEnd
from learner.serving.acting import Acting
from learner.serving.batcher import Request
from learner.telemetry.episodes import EpisodeTracker
from learner.threads import Threads
from learner.training.weights import PublishedWeights
from tests.fakes import PATIENCE_SECONDS, SPEC, SumPolicy, observation

SLOTS, MAX_ROWS = 6, 4


class Kept:
    """An experience that keeps what it is told."""

    def __init__(self) -> None:
        self.slots: list[list[int]] = []
        self.dropped: list[list[int]] = []

    def wait_for_room(self) -> bool:
        return True

    def append(self, steps: Steps) -> None:
        self.slots.append(steps.slots.tolist())

    def drop(self, slots: np.ndarray, reason: LeaseEnd) -> None:
        self.dropped.append(slots.tolist())


class Story:
    def __init__(self, num_threads: int = 1, greedy: bool = False) -> None:
        self.policy = SumPolicy()
        self.weights = PublishedWeights(lambda: None, version=5)
        self.acting = Acting(
            self.policy,
            SPEC,
            self.weights,
            num_slots=SLOTS,
            max_rows=MAX_ROWS,
            num_threads=num_threads,
            greedy=greedy,
        )
        self.calls_before = int(self.policy.calls)
        self.experience = Kept()
        self.episodes = EpisodeTracker(SLOTS)
        self.threads = Threads(on_failure=lambda: None)
        self.answers: queue.SimpleQueue[tuple[list[int], int]] = queue.SimpleQueue()
        self.lane = self.acting.lane(self.experience)

    def ask(self, slots: list[int], numbers: list[float], flags: int = 0) -> tuple[list[int], int]:
        self.lane.submit(
            Request(
                slots=np.array(slots, np.int32),
                observation=[observation(*numbers)],
                reward=np.zeros(len(slots), np.float32),
                flags=np.full(len(slots), flags, np.uint8),
                reply=lambda actions, version: self.answers.put((actions.tolist(), version)),
            )
        )
        self.lane.hand_over()
        return self.answers.get(timeout=PATIENCE_SECONDS)

    def start(self) -> None:
        self.acting.start(self.threads, self.episodes, self.experience)

    def end(self) -> None:
        self.acting.stop()
        assert self.threads.join(PATIENCE_SECONDS) == []
        self.threads.raise_failure()


@pytest.fixture(params=[1, 2])
def story(request: pytest.FixtureRequest) -> Iterator[Story]:
    story = Story(request.param)
    story.start()
    yield story
    story.end()


def test_requests_of_the_lane_are_answered_and_kept(story: Story) -> None:
    assert story.ask([3, 1], [10, 20], LEASE_START) == ([10, 20], 5)
    assert story.ask([1, 3], [1, 2]) == ([21, 12], 5)
    story.weights.publish(6)
    assert story.ask([1], [0]) == ([21], 6)
    assert story.experience.slots == [[3, 1], [1, 3], [1]]
    assert story.episodes.env_steps == 3
    statistics = story.acting.statistics()
    assert (statistics["batches"], statistics["rows"], statistics["capacity"]) == (3, 5, SLOTS)


def test_the_lane_knows_its_place() -> None:
    story = Story()
    lane = story.lane
    assert (lane.spec, lane.slots.capacity, lane.max_rows, lane.version()) == (SPEC, SLOTS, MAX_ROWS, 5)
    lane.drop(np.array([2, 4], np.int32), LeaseEnd.CLOSED)
    assert story.experience.dropped == [[2, 4]]


def test_every_size_is_warm_before_the_first_request() -> None:
    story = Story()
    assert story.calls_before == 2 * 4  # Sizes 1, 2, 3 and 4, each to be timed too.
    assert story.policy.traces == 1
    assert story.acting.layout is story.acting.policy.layout


def test_greedy_reaches_the_policy() -> None:
    story = Story(greedy=True)
    story.start()
    assert story.ask([0], [5]) == ([1005], 5)
    story.end()


def test_load_is_that_of_all_threads(story: Story) -> None:
    story.acting.policy.efficiency = [0.0] * (MAX_ROWS + 1)
    story.ask([0, 1], [10, 20], LEASE_START)
    story.end()
    assert story.acting.statistics()["load_seconds"] == 0
    story.acting._workers[0].load_seconds = 3.0
    assert story.acting.statistics()["load_seconds"] == 3.0 / len(story.acting.clocks)


def test_the_busiest_thread_is_what_counts() -> None:
    story = Story(num_threads=2)
    with story.acting.clocks["inference thread 1"].busy():
        assert story.acting.busy_fraction() > 0
