"""What the watchdog says of a thread that hangs, and when."""

from collections.abc import Iterator

import pytest

from learner.telemetry.statistics import BusyClock
from learner.telemetry.watchdog import Watchdog


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def watch(clocks: dict[str, BusyClock], looks: Iterator[None]) -> list[bool]:
    """What the watchdog says of the clocks; before each look, `looks` sets the scene."""
    said: list[bool] = []
    failures: list[BaseException] = []
    watchdog = Watchdog(
        10.0,
        clocks,
        said.append,
        on_failure=failures.append,
        wait=lambda seconds: next(looks, StopIteration) is StopIteration,
    )
    watchdog.start()
    watchdog.close()
    assert not failures
    return said


def test_a_hang_turns_the_health_and_shows_the_stacks(caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    training, inference = BusyClock(time), BusyClock(time)

    def scenes() -> Iterator[None]:
        with training.busy():
            time.now = 9.0
            yield
            time.now = 11.0
            yield
            time.now = 20.0
            yield
        yield

    said = watch({"training thread": training, "inference thread 0": inference}, scenes())
    assert said == [False, True]
    assert caplog.text.count("training thread has been at one step for 11 s: it hangs") == 1
    assert "MainThread:\n  File" in caplog.text
    assert "inference thread 0 has" not in caplog.text
    assert "training thread goes on" in caplog.text


def test_many_short_steps_are_no_hang() -> None:
    time = Time()
    clock = BusyClock(time)

    def scenes() -> Iterator[None]:
        for _ in range(20):
            with clock.busy():
                time.now += 6.0
                yield

    assert watch({"training thread": clock}, scenes()) == []


def test_health_stays_bad_until_the_last_thread_goes_on() -> None:
    time = Time()
    one, other = BusyClock(time), BusyClock(time)

    def scenes() -> Iterator[None]:
        with one.busy():
            with other.busy():
                time.now = 30.0
                yield
            yield
        yield

    assert watch({"one": one, "other": other}, scenes()) == [False, True]


def test_its_own_failure_is_told() -> None:
    failures: list[BaseException] = []

    def broken(seconds: float) -> bool:
        raise RuntimeError("no clock")

    watchdog = Watchdog(1.0, {}, lambda healthy: None, on_failure=failures.append, wait=broken)
    watchdog.start()
    watchdog.close()
    assert [str(failure) for failure in failures] == ["no clock"]
