"""The queue of finished unrolls: order, room, closing, and what it reports."""

import numpy as np

from learner.experience.unroll_queue import UnrollQueue
from tests.learner.experience.running import Running


class Now:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_first_in_first_out() -> None:
    queue = UnrollQueue(8)
    queue.put(np.array([5, 3]))
    queue.put(np.array([4]))
    first, second = queue.take(2), queue.take(1)
    assert first is not None
    assert second is not None
    assert first.tolist() == [5, 3]
    assert second.tolist() == [4]
    assert first.dtype == np.int64


def test_take_waits_for_as_many_as_it_was_asked_for() -> None:
    queue = UnrollQueue(8)
    taker = Running(lambda: queue.take(3))
    queue.put(np.array([1, 2]))
    taker.until_it_waits(lambda: queue.statistics()["depth"] == 2)
    queue.put(np.array([3, 4]))
    taken = taker.result()
    assert taken is not None
    assert taken.tolist() == [1, 2, 3]
    assert queue.statistics()["depth"] == 1


def test_put_never_blocks_nor_drops() -> None:
    queue = UnrollQueue(2)
    queue.put(np.arange(10))
    taken = queue.take(10)
    assert taken is not None
    assert taken.tolist() == list(range(10))


def test_wait_for_room_returns_at_once_below_capacity() -> None:
    queue = UnrollQueue(2)
    queue.put(np.array([1]))
    assert queue.wait_for_room()
    assert queue.statistics() == {"depth": 1, "capacity": 2, "full_waits": 0, "full_seconds": 0}


def test_whether_there_is_room_can_be_asked_without_waiting() -> None:
    queue = UnrollQueue(2)
    assert queue.has_room()
    queue.put(np.array([1, 2]))
    assert not queue.has_room()
    assert queue.statistics()["full_waits"] == 0, "nobody has waited"
    queue.take(1)
    assert queue.has_room()
    queue.close()
    assert not queue.has_room(), "who waits for room would be turned away"


def test_wait_for_room_waits_while_full_and_is_counted() -> None:
    now = Now()
    queue = UnrollQueue(2, clock=now)
    queue.put(np.array([1, 2, 3]))
    actor = Running(queue.wait_for_room)
    actor.until_it_waits()
    now.seconds = 3.0
    assert queue.statistics() == {"depth": 3, "capacity": 2, "full_waits": 1, "full_seconds": 3}
    queue.take(1)
    actor.until_it_waits(lambda: queue.statistics()["depth"] == 2)
    queue.take(1)
    assert actor.result() is True
    now.seconds = 9.0
    assert queue.statistics() == {"depth": 1, "capacity": 2, "full_waits": 1, "full_seconds": 3}
    queue.put(np.array([4]))
    now.seconds = 10.0
    assert queue.statistics()["full_seconds"] == 4


def test_in_lock_step_there_is_room_only_when_what_was_taken_is_trained_on() -> None:
    queue = UnrollQueue(2, lock_step=True)
    queue.put(np.array([1, 2]))
    queue.take(2)
    actor = Running(queue.wait_for_room)
    actor.until_it_waits()
    queue.trained(2)
    assert actor.result() is True
    assert queue.statistics()["full_waits"] == 1


def test_without_lock_step_what_was_taken_holds_nobody_back() -> None:
    queue = UnrollQueue(2)
    queue.put(np.array([1, 2]))
    queue.take(2)
    queue.trained(2)
    queue.put(np.array([3]))
    assert queue.wait_for_room()
    queue.put(np.array([4]))
    actor = Running(queue.wait_for_room)
    actor.until_it_waits()
    queue.close()
    assert actor.result() is False


def test_closing_wakes_everyone_who_waits() -> None:
    full, empty = UnrollQueue(1), UnrollQueue(1)
    full.put(np.array([1]))
    actors = [Running(full.wait_for_room), Running(full.wait_for_room)]
    taker = Running(lambda: empty.take(1))
    for waiting in (*actors, taker):
        waiting.until_it_waits()
    full.close()
    empty.close()
    assert [actor.result() for actor in actors] == [False, False]
    assert taker.result() is None


def test_closed_queue_turns_away_both_sides_though_there_is_room_and_content() -> None:
    queue = UnrollQueue(4)
    queue.put(np.array([1]))
    queue.close()
    queue.close()
    assert queue.wait_for_room() is False
    assert queue.take(1) is None
    assert queue.statistics() == {"depth": 1, "capacity": 4, "full_waits": 0, "full_seconds": 0}
