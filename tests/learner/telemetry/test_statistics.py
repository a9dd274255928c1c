"""The registry, and meters that say "since the last reading"."""

import time
from contextlib import suppress

import pytest

from learner.telemetry.statistics import (
    BusyClock,
    Durations,
    Histogram,
    Rate,
    Ratio,
    Registry,
    RunningMean,
    Spread,
    Stopwatch,
    ThreadCpu,
    merged,
)


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_snapshot_is_flat_and_of_now() -> None:
    registry = Registry()
    depth = {"depth": 1}
    registry.register("queue", lambda: depth)
    registry.register("batcher", lambda: {"batches": 7.5})
    depth["depth"] = 3
    assert registry.snapshot() == {"queue/depth": 3.0, "batcher/batches": 7.5}
    assert isinstance(registry.snapshot()["queue/depth"], float)


def test_two_parts_cannot_share_a_name() -> None:
    registry = Registry()
    registry.register("queue", dict)
    with pytest.raises(ValueError, match="two parts report as 'queue'"):
        registry.register("queue", dict)


def test_a_part_may_register_others_while_the_snapshot_is_taken() -> None:
    registry = Registry()

    def statistics() -> dict[str, float]:
        with suppress(ValueError):  # The second time it is there.
            registry.register("last", lambda: {"y": 2})
        return {"x": 1}

    registry.register("first", statistics)
    assert registry.snapshot() == {"first/x": 1}
    assert registry.snapshot() == {"first/x": 1, "last/y": 2}


def test_busy_fraction_is_that_since_the_last_reading() -> None:
    now = FakeClock()
    clock = BusyClock(now)
    with clock.busy():
        now.now += 3
    now.now += 1
    assert clock.busy_fraction() == pytest.approx(0.75)
    now.now += 5
    assert clock.busy_fraction() == 0
    with clock.busy():
        now.now += 2
    assert clock.busy_fraction() == 1


def test_work_that_still_runs_counts_as_far_as_it_got() -> None:
    now = FakeClock()
    clock = BusyClock(now)
    now.now += 1
    with clock.busy():
        now.now += 1
        assert clock.busy_fraction() == pytest.approx(0.5)
        now.now += 4
        assert clock.busy_fraction() == pytest.approx(1.0)
    now.now += 4
    assert clock.busy_fraction() == 0


def test_busy_fraction_of_no_time_is_none_of_it() -> None:
    assert BusyClock(FakeClock()).busy_fraction() == 0


def test_work_that_fails_ends_too() -> None:
    now = FakeClock()
    clock = BusyClock(now)
    with suppress(KeyError), clock.busy():
        now.now += 1
        raise KeyError
    now.now += 1
    assert clock.busy_fraction() == pytest.approx(0.5)


def test_busy_is_cheap() -> None:
    clock = BusyClock()
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(1000):
            with clock.busy():
                pass
        best = min(best, (time.perf_counter() - start) / 1000)
    # Well under a microsecond on any machine of this century; the limit leaves room for a busy one.
    assert best < 5e-6


def test_running_mean_is_that_since_the_last_reading() -> None:
    lag = RunningMean()
    assert lag.mean() is None
    lag.add(1)
    lag.add(9, count=4)
    assert lag.mean() == 2
    assert lag.mean() is None
    lag.add(7)
    assert lag.mean() == 7


def test_rate_is_growth_over_time() -> None:
    now = FakeClock()
    rate = Rate(start=1000, clock=now)
    assert rate.per_second(1000) == 0
    now.now += 2
    assert rate.per_second(1500) == 250
    now.now += 2
    assert rate.per_second(1500) == 0


def test_ratio_is_growth_over_growth() -> None:
    rows_a_batch = Ratio()
    assert rows_a_batch.of(0, 0) == 0
    assert rows_a_batch.of(30, 3) == 10
    assert rows_a_batch.of(50, 4) == 20
    assert rows_a_batch.of(50, 4) == 0


def test_busy_seconds_are_those_since_the_start() -> None:
    now = FakeClock()
    clock = BusyClock(now)
    with clock.busy():
        now.now += 3
        assert clock.busy_seconds() == 3
    now.now += 2
    assert clock.busy_fraction() == pytest.approx(0.6)
    assert clock.busy_seconds() == clock.busy_seconds() == 3


def test_the_last_piece_of_work_is_measured_alone() -> None:
    now = FakeClock()
    clock = BusyClock(now)
    for seconds in (3, 2):
        with clock.busy():
            now.now += seconds
        now.now += 1
        assert clock.last_seconds == seconds


@pytest.mark.parametrize(
    ("work", "seconds"),
    [((6.0, None), 6.0), ((5.0, 103.5), 5.0)],
    ids=["ends at 101", "begins at 103.5"],
)
def test_busy_seconds_count_no_time_without_work(
    work: tuple[float, float | None], seconds: float
) -> None:
    """Counted beyond its end, work would be taken back by the next reading."""

    def meanwhile() -> float:
        clock._work = work
        return 103.0

    clock = BusyClock(lambda: 100.0)
    clock._work = (5.0, 100.0)
    clock._clock = meanwhile
    assert clock.busy_seconds() == seconds


def test_histogram_counts_values_up_to_each_bound() -> None:
    rows = Histogram([1, 2, 4])
    assert rows.spread() == Spread((1, 2, 4), (0, 0, 0, 0), 0)
    for value in (1, 2, 3, 4, 5, 0.5):
        rows.add(value)
    assert rows.spread() == Spread((1, 2, 4), (2, 1, 2, 1), 15.5)


def test_durations_are_those_of_what_succeeds() -> None:
    now = FakeClock()
    seconds = Durations(now)
    with seconds.measured():
        now.now += 1.5
    with suppress(KeyError), seconds.measured():
        raise KeyError
    spread = seconds.spread()
    assert (sum(spread.counts), spread.counts[spread.bounds.index(2.5)], spread.total) == (1, 1, 1.5)


def test_durations_reach_from_a_tenth_of_a_millisecond_to_ten_seconds() -> None:
    bounds = Durations().spread().bounds
    assert bounds == tuple(sorted(set(bounds)))
    assert (bounds[0], bounds[-1]) == (pytest.approx(1e-4), 10)


def test_several_threads_histograms_are_one() -> None:
    one, other = Histogram([1, 2]), Histogram([1, 2])
    one.add(1)
    other.add(1)
    other.add(7)
    assert merged([one, other]) == Spread((1, 2), (2, 0, 1), 9)


def test_registry_gives_histograms_by_part() -> None:
    registry, rows = Registry(), Histogram([1])
    registry.register_spreads("acting", lambda: {"rows": rows.spread()})
    rows.add(1)
    assert registry.spreads() == {"acting/rows": Spread((1,), (1, 0), 1)}
    with pytest.raises(ValueError, match="two parts report as 'acting'"):
        registry.register_spreads("acting", dict)


def test_stopwatch_adds_up_how_long_something_was_so() -> None:
    now = FakeClock()
    full = Stopwatch(now)
    full.note(False)
    now.now += 1
    full.note(True)
    now.now += 2
    full.note(True)
    assert full.seconds() == 2
    full.note(False)
    now.now += 4
    assert full.seconds() == 2
    full.note(True)
    now.now += 1
    assert full.seconds() == 3


def test_cpu_time_is_asked_for_once_in_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([100.0, 100.4, 100.5, 100.9, 101.1])
    asked = iter([1.0, 2.0, 3.0])
    monkeypatch.setattr("learner.telemetry.statistics.time.thread_time", lambda: next(asked))
    cpu = ThreadCpu(0.5, clock=lambda: next(moments))
    found = [cpu.seconds]
    for _ in range(5):
        cpu.note()
        found.append(cpu.seconds)
    assert found == [0.0, 1.0, 1.0, 2.0, 2.0, 3.0]
