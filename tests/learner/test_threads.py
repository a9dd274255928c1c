"""The learner's threads: the first failure wins, and is told once."""

import logging
import threading
import time

import pytest

from learner.threads import Threads
from protos.errors import WorkerFailure

LIMIT_SECONDS = 10.0


def fail_with(error: BaseException) -> None:
    raise error


def test_threads_that_return_are_no_failure() -> None:
    told: list[str] = []
    names: list[str] = []
    threads = Threads(on_failure=lambda: told.append("failed"))
    for name in ("inference thread 0", "prefetch thread"):
        threads.start(name, lambda: names.append(threading.current_thread().name))
    assert threads.join(LIMIT_SECONDS) == []
    threads.raise_failure()
    assert told == []
    assert sorted(names) == ["inference thread 0", "prefetch thread"]


@pytest.mark.parametrize(
    "error", [ValueError("bad shape"), SystemExit("bad shape"), KeyboardInterrupt()]
)
def test_whatever_a_thread_raises_is_a_failure(error: BaseException) -> None:
    failed = threading.Event()
    threads = Threads(on_failure=failed.set)
    threads.start("inference thread", lambda: fail_with(error))
    assert failed.wait(LIMIT_SECONDS)
    assert threads.join(LIMIT_SECONDS) == []
    with pytest.raises(WorkerFailure) as raised:
        threads.raise_failure()
    assert str(raised.value) == f"inference thread failed: {type(error).__name__}: {error}"
    assert raised.value.__cause__ is error


def test_an_error_that_cannot_be_shown_is_a_failure_too(caplog: pytest.LogCaptureFixture) -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    threads = Threads(on_failure=lambda: None)
    for name in ("one", "other"):
        threads.fail(name, MuteError())
    words = "(what it says cannot be had: ZeroDivisionError)"
    with pytest.raises(WorkerFailure) as raised:
        threads.raise_failure()
    assert str(raised.value) == f"one failed: MuteError: {words}"
    assert caplog.messages == [f"other failed too, after the first failure: {words}"]


def test_failure_is_there_when_the_main_thread_is_woken() -> None:
    seen: list[str] = []

    def look() -> None:
        with pytest.raises(WorkerFailure) as raised:
            threads.raise_failure()
        seen.append(str(raised.value))

    threads = Threads(on_failure=look)
    threads.start("actor 0", lambda: fail_with(OSError("gone")))
    assert threads.join(LIMIT_SECONDS) == []
    assert seen == ["actor 0 failed: OSError: gone"]


def test_first_failure_wins_and_later_ones_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    threads = Threads(on_failure=lambda: told.append("failed"))
    first = ValueError("first")
    with caplog.at_level(logging.ERROR):
        threads.fail("reporter", first)
        threads.start("prefetch thread", lambda: fail_with(ValueError("second")))
        assert threads.join(LIMIT_SECONDS) == []
        threads.fail("environment", ValueError("third"))
    assert told == ["failed"]
    for _ in range(2):
        with pytest.raises(WorkerFailure, match=r"^reporter failed: ValueError: first$") as raised:
            threads.raise_failure()
        assert raised.value.__cause__ is first
    assert caplog.messages == [
        "prefetch thread failed too, after the first failure: second",
        "environment failed too, after the first failure: third",
    ]


def test_of_many_failures_at_once_one_is_told() -> None:
    told: list[str] = []
    count = 16
    together = threading.Barrier(count)
    threads = Threads(on_failure=lambda: told.append("failed"))

    def fail() -> None:
        together.wait()
        raise ValueError(threading.current_thread().name)

    for number in range(count):
        threads.start(f"thread {number}", fail)
    assert threads.join(LIMIT_SECONDS) == []
    assert told == ["failed"]


def test_join_names_who_does_not_end_and_waits_once_for_all() -> None:
    release = threading.Event()
    threads = Threads(on_failure=lambda: None)
    threads.start("done", lambda: None)
    names = [f"stuck {number}" for number in range(20)]
    for name in names:
        threads.start(name, lambda: None if release.wait(LIMIT_SECONDS) else fail_with(TimeoutError()))
    started = time.monotonic()
    assert threads.join(0.2) == names
    # Waiting 0.2 s for each would take 4 s.
    assert time.monotonic() - started < 2.0
    release.set()
    assert threads.join(LIMIT_SECONDS) == []
    threads.raise_failure()


def test_stuck_thread_does_not_keep_the_process_alive() -> None:
    threads = Threads(on_failure=lambda: None)
    daemons: list[bool] = []
    threads.start("any", lambda: daemons.append(threading.current_thread().daemon))
    assert threads.join(LIMIT_SECONDS) == []
    assert daemons == [True]
