"""The acting half, put together: from a lane's requests to their answers."""

import queue
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from learner.experience.unrolls import Steps
from learner.flags import LEASE_START, LeaseEnd
from learner.serving.acting import Acting
from learner.serving.batcher import Request
from learner.serving.policy_call import PolicyEngine
from learner.telemetry.episodes import EpisodeTracker
from learner.threads import Threads
from learner.training.weights import PublishedWeights
from tests.fakes import PATIENCE_SECONDS, SPEC, SumPolicy, observation

SLOTS, MAX_ROWS = 6, 4


class Kept:
    """An experience that keeps what it is told."""

    def __init__(self) -> None:
        self.room = threading.Event()
        self.room.set()
        self.slots: list[list[int]] = []
        self.threads: list[str] = []
        self.dropped: list[list[int]] = []

    def wait_for_room(self) -> bool:
        return self.room.wait(PATIENCE_SECONDS)

    def has_room(self) -> bool:
        return self.room.is_set()

    def append(self, steps: Steps) -> None:
        self.slots.append(steps.slots.tolist())
        self.threads.append(threading.current_thread().name)

    def drop(self, slots: np.ndarray, reason: LeaseEnd) -> None:
        self.dropped.append(slots.tolist())


class Story:
    def __init__(
        self, num_threads: int = 1, greedy: bool = False, engine: PolicyEngine = "auto"
    ) -> None:
        # What counts its calls is nothing for NumPy.
        self.policy = SumPolicy(counts=engine != "numpy")
        self.weights = PublishedWeights(lambda: None, version=5)
        self.acting = Acting(
            self.policy,
            SPEC,
            self.weights,
            num_slots=SLOTS,
            max_rows=MAX_ROWS,
            num_threads=num_threads,
            greedy=greedy,
            engine=engine,
        )
        self.calls_before = int(self.policy.calls)
        self.experience = Kept()
        self.episodes = EpisodeTracker(SLOTS)
        self.threads = Threads(on_failure=lambda: None)
        self.answers: queue.SimpleQueue[tuple[list[int], int]] = queue.SimpleQueue()
        self.lane = self.acting.lane(self.experience)

    def ask(self, slots: list[int], numbers: list[float], flags: int = 0) -> tuple[list[int], int]:
        self.submit(slots, numbers, flags)
        self.lane.hand_over()
        return self.answers.get(timeout=PATIENCE_SECONDS)

    def submit(self, slots: list[int], numbers: list[float], flags: int = 0) -> None:
        self.lane.submit(
            Request(
                slots=np.array(slots, np.int32),
                observation=[observation(*numbers)],
                reward=np.zeros(len(slots), np.float32),
                flags=np.full(len(slots), flags, np.uint8),
                reply=lambda actions, version: self.answers.put((actions.tolist(), version)),
            )
        )

    def start(self) -> None:
        self.acting.start(self.threads, self.episodes, self.experience)

    def end(self) -> None:
        self.acting.stop()
        assert self.threads.join(PATIENCE_SECONDS) == []
        self.threads.raise_failure()


@pytest.fixture(params=[(1, "tensorflow"), (2, "tensorflow"), (1, "numpy"), (2, "numpy")])
def story(request: pytest.FixtureRequest) -> Iterator[Story]:
    threads, engine = request.param
    story = Story(threads, engine=engine)
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


@pytest.mark.parametrize("num_threads", [1, 2])
def test_load_is_that_of_all_threads(num_threads: int) -> None:
    story = Story(num_threads, engine="tensorflow")
    story.start()
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


def test_numpy_answers_in_the_thread_that_hands_over() -> None:
    story = Story(engine="numpy")
    story.start()
    own = threading.current_thread().name
    story.submit([0, 1], [10, 20], LEASE_START)
    story.submit([2], [30], LEASE_START)
    story.lane.hand_over()
    assert [story.answers.get_nowait() for _ in range(2)] == [([10, 20], 5), ([30], 5)]
    assert (story.experience.slots, story.experience.threads) == ([[0, 1, 2]], [own])
    assert story.acting.statistics()["batches"] == 1
    story.end()


def test_without_room_a_thread_waits_for_it_and_not_who_hands_over() -> None:
    story = Story(engine="numpy")
    story.start()
    story.experience.room.clear()
    story.submit([0], [10], LEASE_START)
    story.lane.hand_over()
    assert story.answers.empty()
    story.experience.room.set()
    assert story.answers.get(timeout=PATIENCE_SECONDS) == ([10], 5)
    assert story.experience.threads == ["inference thread 0"]
    assert story.ask([0], [1]) == ([11], 5), "its memory is the same, whoever answers"
    story.end()


def test_published_weights_act_in_numpy_too() -> None:
    story = Story(engine="numpy")
    story.start()
    assert story.ask([0], [10], LEASE_START) == ([10], 5)
    story.policy.offset.assign(100)
    assert story.ask([1], [10], LEASE_START) == ([10], 5), "they are not published yet"
    story.weights.publish(6)
    assert story.ask([2], [10], LEASE_START) == ([110], 6)
    story.end()


def test_the_event_loops_work_is_reported_beside_the_threads() -> None:
    story = Story(num_threads=2, engine="numpy")
    names = ["inference thread 0", "inference thread (event loop)"]
    assert list(story.acting.clocks) == names, "one thread is enough to wait"
    assert story.acting.computed_by == "NumPy in the event loop"
    assert Story(num_threads=2).acting.computed_by == "TensorFlow in 2 inference threads"
    story.start()
    story.ask([0], [10], LEASE_START)
    assert story.acting.clocks[names[1]].busy_seconds() > 0
    assert story.acting.clocks[names[0]].busy_seconds() == 0
    assert story.acting.statistics()["load_seconds"] > 0
    assert sum(story.acting.spreads()["latency"].counts) == 1
    story.end()


def test_steps_before_the_start_wait_for_it() -> None:
    story = Story(engine="numpy")
    story.submit([0], [10], LEASE_START)
    story.lane.hand_over()
    assert story.answers.empty()
    story.start()
    assert story.answers.get(timeout=PATIENCE_SECONDS) == ([10], 5)
    story.end()
