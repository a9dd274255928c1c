"""The reporter thread, with intervals that the test ends."""

import queue
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from learner.telemetry.report import Report
from learner.telemetry.reporter import Reporter
from learner.telemetry.statistics import Registry


class Intervals:
    """Stands for the wait: `tick` ends an interval, `end` is the event that closing sets."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self._ends: queue.Queue[bool] = queue.Queue()

    def __call__(self, seconds: float) -> bool:
        self.asked.append(seconds)
        return self._ends.get(timeout=10)

    def tick(self) -> None:
        self._ends.put(False)

    def end(self) -> None:
        self._ends.put(True)


class Seen:
    """A sink that hands over what it got, and counts reports as environment steps."""

    def __init__(self) -> None:
        self.reports: queue.Queue[tuple[Report, Mapping[str, Any]]] = queue.Queue()
        self.built = 0

    def build(self) -> Report:
        self.built += 1
        return Report(env_steps=self.built, total_steps=10, seconds=1.0, steps_per_second=1.0)

    def sink(self, report: Report, values: Mapping[str, Any]) -> None:
        self.reports.put((report, values))

    def next(self) -> tuple[Report, Mapping[str, Any]]:
        return self.reports.get(timeout=10)


def fail_test(error: BaseException) -> None:
    raise AssertionError from error


def test_every_interval_and_the_end_reach_every_sink() -> None:
    intervals, one, other = Intervals(), Seen(), Seen()
    registry = Registry()
    registry.register("queue", lambda: {"depth": 3})
    reporter = Reporter(
        2.5, one.build, registry, [one.sink, other.sink], on_failure=fail_test, wait=intervals
    )
    reporter.start()
    intervals.tick()
    report, values = one.next()
    assert report.env_steps == 1
    assert values["queue/depth"] == 3
    assert values["env_steps"] == 1
    intervals.end()
    reporter.close()
    assert one.next()[0].env_steps == 2
    assert [other.next()[0].env_steps for _ in range(2)] == [1, 2]
    assert one.reports.empty()
    assert intervals.asked == [2.5, 2.5]


def test_close_ends_a_real_wait_at_once_and_twice_is_fine() -> None:
    seen = Seen()
    reporter = Reporter(3600, seen.build, Registry(), [seen.sink], on_failure=fail_test)
    reporter.start()
    reporter.close()
    reporter.close()
    assert seen.built == 1


def test_a_disk_that_does_not_answer_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    seen, answered = Seen(), threading.Event()
    reporter = Reporter(
        1, seen.build, Registry(), [lambda *_: answered.wait(), seen.sink], on_failure=fail_test,
        wait=lambda _: True,
    )  # fmt: skip
    reporter.start()
    reporter.close(timeout_seconds=0.0)
    assert caplog.messages == ["the reporter did not end within 0 s"]
    answered.set()
    assert seen.next()[0].env_steps == 1
    reporter.close()


def test_close_without_start_does_nothing() -> None:
    seen = Seen()
    Reporter(1, seen.build, Registry(), [seen.sink], on_failure=fail_test).close()
    assert seen.built == 0


@pytest.mark.parametrize("part", ["build", "statistics", "sink"])
def test_a_failure_of_any_part_reaches_the_owner_and_ends_the_thread(part: str) -> None:
    failures: queue.Queue[BaseException] = queue.Queue()
    seen, registry, intervals = Seen(), Registry(), Intervals()

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError(part)

    registry.register("part", broken if part == "statistics" else dict)
    reporter = Reporter(
        1,
        broken if part == "build" else seen.build,
        registry,
        [broken if part == "sink" else seen.sink],
        on_failure=failures.put,
        wait=intervals,
    )
    reporter.start()
    intervals.tick()
    assert str(failures.get(timeout=10)) == part
    reporter.close()
    assert seen.reports.empty()
    assert failures.empty()


def test_a_failure_may_close_the_reporter_from_its_own_thread() -> None:
    closed: queue.Queue[bool] = queue.Queue()

    def build() -> Report:
        raise ZeroDivisionError

    def on_failure(error: BaseException) -> None:
        reporter.close()
        closed.put(True)

    reporter = Reporter(0.0, build, Registry(), [], on_failure=on_failure, wait=lambda _: False)
    reporter.start()
    assert closed.get(timeout=10)
