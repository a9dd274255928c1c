"""The registry, and meters that say "since the last reading"."""

import time
from contextlib import suppress

import pytest

from learner.telemetry.statistics import BusyClock, Rate, Ratio, Registry, RunningMean


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
