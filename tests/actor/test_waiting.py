"""Deadlines and interruptions of a thread that waits."""

import queue
import threading
from collections.abc import Iterator

import pytest

from actor.waiting import Interrupted, Overdue, Waiting
from tests.fakes import PATIENCE_SECONDS


@pytest.fixture
def woken() -> "queue.SimpleQueue[None]":
    return queue.SimpleQueue()


@pytest.fixture
def waiting(woken: "queue.SimpleQueue[None]") -> Iterator[Waiting]:
    made = Waiting()
    made.wake = lambda: woken.put(None)
    yield made
    made.end()
    assert "client" not in [thread.name for thread in threading.enumerate()]


def wait(woken: "queue.SimpleQueue[None]") -> None:
    woken.get(timeout=PATIENCE_SECONDS)


def test_a_deadline_wakes_once(waiting: Waiting, woken: "queue.SimpleQueue[None]") -> None:
    for _ in range(3):
        waiting.begin(0.01)
        wait(woken)
        with pytest.raises(Overdue):
            waiting.check()
    assert woken.empty()


def test_a_nearer_deadline_counts_at_once(waiting: Waiting, woken: "queue.SimpleQueue[None]") -> None:
    waiting.begin(1e100)
    waiting.check()
    waiting.begin(3600)
    waiting.check()
    waiting.begin(0.01)
    wait(woken)
    with pytest.raises(Overdue):
        waiting.check()


def test_a_wait_that_is_over_does_not_cut_the_next_short(
    waiting: Waiting, woken: "queue.SimpleQueue[None]"
) -> None:
    waiting.begin(0.01)
    wait(woken)
    waiting.begin(3600)
    waiting.check()


def test_ctrl_c_that_keeps_its_thread_from_starting_leaves_deadlines_that_count(
    waiting: Waiting, woken: "queue.SimpleQueue[None]", monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            waiting.begin(0.01)
    waiting.end()
    waiting.begin(0.01)
    wait(woken)


def test_many_waits_cost_the_thread_nothing(waiting: Waiting) -> None:
    """It is told of a deadline only where it would look too late."""
    waiting.begin(3600)
    told = queue.SimpleQueue[bool]()
    thread, waiting._going_on, own = waiting._thread, told, waiting._going_on
    assert thread is not None
    for _ in range(1000):
        waiting.begin(3601)
    waiting._going_on = own
    assert told.qsize() <= 1


def test_interrupt_wakes_and_stays(waiting: Waiting, woken: "queue.SimpleQueue[None]") -> None:
    waiting.interrupt()
    wait(woken)
    for _ in range(2):
        with pytest.raises(Interrupted):
            waiting.check()
        with pytest.raises(Interrupted):
            waiting.sleep(3600)


def test_interrupt_ends_a_sleep(waiting: Waiting) -> None:
    waiting.sleep(0)
    threading.Thread(target=waiting.interrupt).start()
    with pytest.raises(Interrupted):
        waiting.sleep(3600)


def test_the_end_may_come_often_and_before_anything() -> None:
    waiting = Waiting()
    waiting.end()
    waiting.begin(3600)
    waiting.end()
    waiting.end()
