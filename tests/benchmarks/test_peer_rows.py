"""What is made of the runs of several systems: windows, rates, what does not count, medians, tables."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.measure import Window
from benchmarks.peer_drivers import records, say
from benchmarks.peer_drivers.records import Totals
from benchmarks.peer_drivers.settings import MARK, Settings, expected_parameters
from benchmarks.peer_rows import Row, RowFile, memory_slope, row_of, spread
from benchmarks.peer_run import WATCHING, Observed
from benchmarks.peer_settings import PEERS, WORKLOADS, algorithm_of, in_turn, settings_for
from benchmarks.peer_tables import tables
from benchmarks.peer_watch import Limits, Look, Watch, rates

STEPS_PER_SECOND = 200.0
LIMITS = Limits(warm_up_seconds=4.0, window_seconds=10.0)


def totals(steps: int, mean_return: float | None = None, episodes: int = 200) -> Totals:
    waits = [0] * records.BINS
    waits[records.bin_of(0.002)] = steps
    return Totals(steps, episodes, tuple(waits), mean_return)


def look(time: float, trained_part: float = 1.0, lag: float | None = 2.0) -> Look:
    """Of a run that began to step at 100 s, and to train at 101 s."""
    steps = int(STEPS_PER_SECOND * (time - 100))
    trained = trained_part * max(steps - STEPS_PER_SECOND, 0)
    return Look(time, totals(steps), trained, int(trained // 50), lag)


def watched(limits: Limits = LIMITS, trained_part: float = 1.0) -> Watch:
    watch = Watch(limits, started=97.0)
    for tick in range(400):
        watch.see(look(100 + tick / 4, trained_part))
    return watch


# Windows ----------------------------------------------------------------------------------------


def test_the_window_begins_after_the_warm_up_and_ends_with_a_reading() -> None:
    watch = watched()
    assert watch.cold_start_seconds == 4.25  # the first reading with an update is at 101.25
    assert watch.opened is not None
    assert watch.closed is not None
    assert watch.opened.time == 105.25
    assert watch.closed.time == 115.25
    assert watch.done
    assert watch.threshold is None


def test_rates_are_those_of_the_window() -> None:
    found = rates(watched(), steps_in_flight=100)
    assert found.steps_per_second == pytest.approx(STEPS_PER_SECOND)
    assert found.trained_per_second == pytest.approx(STEPS_PER_SECOND)
    assert found.trained_ratio == pytest.approx(1.0)
    assert found.trained_ratio_resolution == pytest.approx(100 / 2000)
    assert found.wait_p50_ms == pytest.approx(2.0, rel=0.05)
    assert found.policy_lag == 2.0


@pytest.mark.parametrize(
    ("part", "in_flight", "valid"),
    [(1.0, 0, True), (0.94, 0, False), (1.06, 0, False), (0.96, 0, True), (0.94, 100, True)],
)
def test_a_run_counts_if_it_trains_on_what_it_samples(part: float, in_flight: int, valid: bool) -> None:
    assert rates(watched(trained_part=part), in_flight).valid is valid


def test_a_run_goes_on_to_its_threshold() -> None:
    watch = Watch(LIMITS._replace(threshold=475.0, threshold_steps=10**6), started=97.0)
    for tick in range(100):
        watch.see(look(100 + tick / 4))
    assert watch.closed is not None
    done = []
    # The first is of fewer episodes than it takes.
    for time, mean, episodes in ((130.0, 480.0, 99), (131.0, 474.9, 200), (132.0, 475.0, 200)):
        watch.count(time, totals(6400, mean, episodes))
        done.append(watch.done)
    assert done == [False, False, True]
    assert watch.threshold == (True, 132.0 - 100.25, 6400)


def test_a_run_fails_by_steps_and_not_by_time() -> None:
    watch = Watch(LIMITS._replace(threshold=475.0, threshold_steps=3000), started=97.0)
    for tick in range(100):
        watch.see(look(100 + tick / 4))
    assert watch.threshold == (False, 15.0 - 0.25, 3000)
    assert watch.done


# Rows -------------------------------------------------------------------------------------------


def observed(
    watch: Watch, *, foreign: float = 0.0, whole: float = 0.0, parameters: int | None = None
) -> Observed:
    window = Window(
        began=100.0,
        seconds=10.0,
        cpu_seconds={WATCHING: 1.0},
        own_cpu_seconds=13.0,
        raw_foreign_cpu=foreign,
        steal=0.01,
    )
    return Observed(
        watch=watch,
        window=window,
        whole=replace(window, raw_foreign_cpu=whole),
        memory=[(100.0, 10**8), (105.0, 10**8), (110.0, 10**8)],
        loopback_bytes=20_000,
        said={"parameters": parameters, "transport": "pipes"},
    )


PLAIN = Row(workload="W1", kind="equal", peer="rllib", repeat=1)


def made(watch: Watch | None = None, **disturbed: Any) -> Row:
    return row_of(PLAIN, Settings("W1"), observed(watch or watched(), **disturbed))


def test_a_row_holds_rates_costs_and_memory() -> None:
    row = made()
    assert (row.status, row.reason, row.transport) == ("ok", "", "pipes")
    assert row.figures["cpu_seconds_per_million"] == pytest.approx(1.2 / STEPS_PER_SECOND * 1e6)
    assert row.figures["loopback_bytes_per_step"] == pytest.approx(10.0)
    assert row.figures["memory_mb"] == pytest.approx(100)
    assert row.figures["memory_mb_per_minute"] == pytest.approx(0, abs=1e-6)


def test_a_disturbed_row_is_void() -> None:
    row = made(foreign=0.06)
    assert row.status == "void"
    assert row.reason == "others took 7 % of the machine, expected at most 5 %"
    assert made(foreign=0.03).status == "ok"


def test_a_time_to_a_threshold_counts_only_if_all_of_the_run_was_quiet() -> None:
    assert made(whole=0.5).status == "ok"
    watch = watched(LIMITS._replace(threshold=475.0, threshold_steps=100))
    assert made(watch, whole=0.5).status == "void"


def test_a_row_that_trains_on_less_than_it_samples_is_void() -> None:
    row = made(watched(trained_part=0.3))
    assert row.status == "void"
    assert row.reason == "trained / sampled is 0.30, expected 0.95 to 1.05"


def test_a_network_of_another_size_is_void() -> None:
    assert made(parameters=expected_parameters(Settings("W1"))).status == "ok"
    row = made(parameters=9000)
    assert row.status == "void"
    assert row.reason == "its network has 9,000 parameters, expected 9155 or 9155"


def test_memory_that_grows_has_a_slope() -> None:
    samples = [(float(t), 10**9 + 10**6 * t) for t in range(0, 60, 5)]
    assert memory_slope(samples) == pytest.approx(60.0)
    assert memory_slope(samples[:2]) is None


def rows_with(speeds: Sequence[float], **changes: Any) -> list[Row]:
    values = {**vars(PLAIN), **changes}
    return [
        Row(**{**values, "repeat": i + 1, "figures": {"steps_per_second": speed}})
        for i, speed in enumerate(speeds)
    ]


def test_median_and_quartiles_are_numpys() -> None:
    speeds = np.random.default_rng(0).uniform(10, 20, 5)
    found = spread(rows_with(speeds.tolist()), "steps_per_second")
    assert found is not None
    assert found == pytest.approx((np.median(speeds), *np.quantile(speeds, (0.25, 0.75))))
    assert spread(rows_with([1.0]), "wait_p50_ms") is None


def test_what_counts_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    file = RowFile(path)
    good, bad = rows_with([1.0, 2.0])
    file.add(good)
    file.add(Row(**{**vars(bad), "status": "void"}))
    again = RowFile(path)
    assert [again.has(row.key) for row in (good, bad)] == [True, False]
    again.add(bad)
    assert RowFile(path).rows == [good, bad]


# Settings ---------------------------------------------------------------------------------------


def test_repeats_alternate_between_the_systems() -> None:
    turns = in_turn(["W1", "W2"], ["equal"], ["a", "b"], 2)
    assert [(workload, peer, repeat) for workload, _, peer, repeat in turns] == [
        ("W1", "a", 1), ("W1", "b", 1), ("W1", "a", 2), ("W1", "b", 2),
        ("W2", "a", 1), ("W2", "b", 1), ("W2", "a", 2), ("W2", "b", 2),
    ]  # fmt: skip


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_equal_settings_are_equal_and_all_settings_fit(peer: str, workload: str) -> None:
    equal = settings_for(peer, workload, "equal", seed=3)
    best = settings_for(peer, workload, "best", seed=3)
    if equal is None or best is None:
        assert (peer, workload) == ("stable-baselines3", "W6")
        return
    same = (peer, workload) not in {("sample-factory", "W6"), ("seedbed", "W5")}
    assert (equal == Settings(workload, seed=3)) is same
    assert replace(equal, extra={}) == Settings(workload, seed=3)
    assert (equal.environments, equal.batch_steps, equal.threads) == (16, 512, 1)
    assert Settings.from_json(best.to_json()) == best
    assert best.seed == 3
    assert best.batch_steps % best.unroll_length == 0
    assert algorithm_of(peer, best)


# Readings ---------------------------------------------------------------------------------------


def test_readings_are_neither_too_many_nor_repeated(tmp_path: Path) -> None:
    records.Record(tmp_path).stepped(5, 0.001)
    times = iter([0.0, 0.1, 0.3, 0.6])
    said: list[dict[str, Any]] = []
    readings = say.Readings(tmp_path, lambda: next(times), lambda **values: said.append(values))
    for trained in (100, 200, 300, 300):
        readings.add(trained, trained // 100, 1.0)
    found = [(one["time"], one["sampled"], one["trained"]) for one in said]
    assert found == [(0.0, 5, 100), (0.3, 5, 300)]


def test_what_is_said_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    say.say(trained=1, updates=2)
    assert f'\n{MARK}{{"trained": 1, "updates": 2}}\n' in capfd.readouterr().out


# Tables -----------------------------------------------------------------------------------------


def test_tables_hold_medians_failures_and_what_did_not_count() -> None:
    threshold = {"reached": True, "seconds": 20.0, "steps": 90_000}
    failed = {"reached": False, "seconds": 300.0, "steps": 2_000_000}
    good = rows_with([100.0, 110.0, 120.0], workload="W3", algorithm="IMPALA")
    good = [
        Row(**{**vars(row), "threshold": found})
        for row, found in zip(good, (threshold, failed, failed), strict=True)
    ]
    void = Row(**{**vars(PLAIN), "workload": "W3", "repeat": 4, "status": "void", "reason": "loud"})
    crashed = Row(
        **{
            **vars(PLAIN),
            "workload": "W3",
            "repeat": 5,
            "status": "crashed",
            "reason": "status 1:\nboom",
        }
    )
    skipped = Row(
        workload="W3", kind="equal", peer="sample-factory", repeat=1, status="skipped", reason="- no"
    )
    title, speeds, times, rest = tables([*good, void, crashed, skipped])
    assert title.startswith("W3, equal settings: CartPole-v1")
    assert "| 3 of 5 | 110.0 [105.0, 115.0] |" in speeds
    assert "sample-factory" not in speeds
    # Two of three failed: the median one did not reach it.
    assert "| 1 of 3 | - | - | 20.00 |" in times
    assert "VOID W3 equal rllib repeat 4: loud" in rest
    assert "CRASHED W3 equal rllib repeat 5: status 1:\nboom" in rest
    assert "SKIPPED sample-factory: - no" in rest
