"""The bound on a run's end."""

import queue
import threading

import pytest

from learner.telemetry.drain import Drain


def test_what_does_not_end_is_given_up_once_and_says_where_each_thread_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given_up: queue.Queue[str] = queue.Queue()
    drain = Drain(0.0, lambda: given_up.put(threading.current_thread().name))
    drain.begin()
    drain.begin()
    assert given_up.get(timeout=10) != threading.current_thread().name
    assert len(caplog.messages) == 1
    assert "the run did not end within 0 s (--drain-seconds): the process ends now" in caplog.text
    assert "MainThread:" in caplog.text
    drain.close()
    assert given_up.empty()


def test_what_has_ended_is_not_given_up() -> None:
    def give_up() -> None:
        raise AssertionError

    drain = Drain(3600.0, give_up)
    drain.begin()
    timer = drain._timer
    assert timer is not None
    drain.close()
    drain.close()
    timer.join(10)
    assert not timer.is_alive()
    late = Drain(0.0, give_up)
    late.close()
    late.begin()
    assert late._timer is None
