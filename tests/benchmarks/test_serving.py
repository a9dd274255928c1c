"""A second of serving, in rounds."""

from contextlib import nullcontext
from statistics import median
from typing import Any

import numpy as np
import pytest

from benchmarks import serving
from benchmarks.load import Loaded
from benchmarks.measure import Window
from benchmarks.serving import ServingOptions, _Policy, _Round, batch_rows, tables
from benchmarks.serving_learner import Counters, between
from protos.errors import ConfigError
from tests.benchmarks.running import refused, run


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return run(
        "serving",
        "--observation=4:float32",
        "--actors=2",
        "--envs=3",
        "--seconds=1",
        "--rounds=3",
        "--warm-up-seconds=0.2",
        "--unroll-length=2",
    )


def test_serving_is_compared_with_its_limits(result: dict[str, Any]) -> None:
    serving, echo, policy = result["serving"], result["echo"], result["policy"]
    rates = [part["observations_per_second"] for part in (echo, policy)]
    limit = 1 / sum(1 / rate for rate in rates)
    assert result["limit_observations_per_second"] == pytest.approx(limit)
    costs = [part["cpu_seconds_per_million"] for part in (echo, policy)]
    assert result["cpu_ratio"] == pytest.approx(sum(costs) / serving["cpu_seconds_per_million"])


def test_every_round_has_ratios_of_its_own(result: dict[str, Any]) -> None:
    rounds = result["rounds"]
    assert len(rounds) == 3
    for each in rounds:
        for name, echo in (("ratio", "echo"), ("transport_ratio", "transport")):
            limit = 1 / (1 / each[echo] + 1 / each["policy"])
            assert each[name] == pytest.approx(each["serving"] / limit)
    for name in ("ratio", "transport_ratio"):
        assert result[name] == median(each[name] for each in rounds)


@pytest.mark.parametrize("part", ["serving", "echo", "transport", "policy"])
def test_figures_are_of_all_rounds(result: dict[str, Any], part: str) -> None:
    rates = [each[part] for each in result["rounds"]]
    assert min(rates) <= result[part]["observations_per_second"] <= max(rates)


def test_each_part_is_measured_for_the_seconds(result: dict[str, Any]) -> None:
    assert result["windows"].keys() == {"serving", "echo", "transport", "the policy"}
    assert all(window["seconds"] >= 1 for window in result["windows"].values())


def test_the_round_before_them_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[float] = []

    def round_of(parts: None, seconds: float) -> _Round:
        lengths.append(seconds)
        window = Window(
            began=0.0,
            seconds=seconds,
            cpu_seconds={"server": 1.0, "clients": 1.0},
            own_cpu_seconds=2.0,
            raw_foreign_cpu=0.0,
            steal=0.0,
        )
        looks = Counters(0.0, 0, 0, {}), Counters(seconds, 2, 1, {})
        loaded = Loaded(window, [np.array([0.25])], looks)
        return _Round(loaded, loaded, loaded, _Policy(window, rows=2, calls=1, seconds=seconds))

    monkeypatch.setattr(serving, "_parts", nullcontext)
    monkeypatch.setattr(serving, "_round", round_of)
    result, windows = serving.measure(ServingOptions(seconds=1.0, rounds=2, warm_up_seconds=8.0))
    assert lengths == [8.0, 0.5, 0.5]
    assert len(result["rounds"]) == 2
    assert [usage.seconds for usage in windows.values()] == [1.0] * 4


def test_a_window_without_a_batch_is_too_short() -> None:
    assert batch_rows(Counters(0.5, 11, 4, {}), 0.5) == 3
    with pytest.raises(
        ConfigError, match=r"no batch in a window of 0\.5 s: fewer --rounds, or more --sec"
    ):
        batch_rows(Counters(0.5, 0, 0, {}), 0.5)


def test_the_table_shows_the_lowest_and_the_highest_ratio(result: dict[str, Any]) -> None:
    figures = result | {"ratio": 0.75, "rounds": [
        {"ratio": ratio, "transport_ratio": ratio / 2} for ratio in (0.9, 0.75, 0.5)
    ]}  # fmt: skip
    shown = "\n".join(tables(ServingOptions(), figures))
    assert "| ratio of observations/s to the limit's | 0.7500 | 0.5000 | 0.9000 |" in shown


def test_what_lies_between_looks_is_added_up() -> None:
    looks = [
        (Counters(1.0, 10, 1, {"a": 1.0}), Counters(3.0, 40, 3, {"a": 1.5, "b": 0.25})),
        (Counters(7.0, 90, 8, {"a": 4.0, "b": 1.0}), Counters(8.0, 100, 9, {"a": 4.25, "b": 1.5})),
    ]
    assert between(looks) == Counters(3.0, 40, 3, {"a": 0.75, "b": 0.75})


def test_every_message_has_a_round_trip(result: dict[str, Any]) -> None:
    serving = result["serving"]
    round_trips = serving["round_trip_ms"]
    assert 0 < round_trips["p50"] <= round_trips["p95"] <= round_trips["p99"]
    # Counted at the learner and at the actors, a moment apart.
    rows = serving["observations_per_second"] * result["windows"]["serving"]["seconds"]
    assert serving["messages"] * 3 == pytest.approx(rows, rel=0.5)
    assert 3 <= serving["mean_batch"] <= 6


def test_cpu_time_adds_up(result: dict[str, Any]) -> None:
    serving = result["serving"]
    learner, actors = (serving[f"{who}_cpu_seconds_per_million"] for who in ("learner", "actors"))
    assert learner > 0
    assert actors > 0
    assert serving["cpu_seconds_per_million"] == pytest.approx(learner + actors)
    threads = serving["learner_threads_cpu_seconds_per_million"]
    assert {"event loop", "inference thread 0", "consumer", "native threads"} <= threads.keys()
    assert threads["event loop"] > 0
    assert threads["inference thread 0"] > 0
    assert sum(threads.values()) == pytest.approx(learner)


def test_the_echo_carries_messages_of_the_same_size(result: dict[str, Any]) -> None:
    # 3 environments of 16 bytes of observation, 4 of reward, 4 of index, 1 of flags.
    assert 75 <= result["echo"]["request_bytes"] <= 75 + 30
    assert 24 <= result["echo"]["reply_bytes"] <= 24 + 20


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rounds=0"], "--rounds 0: expected at least 1"),
        (
            ["--seconds=1", "--rounds=20"],
            "--rounds 20: expected windows of at least 0.1 s, found 0.05 s of --seconds 1",
        ),
    ],
)
def test_rounds_that_are_too_short_or_none_are_refused(options: list[str], said: str) -> None:
    assert said in refused("serving", *options)


def test_a_malformed_observation_is_refused() -> None:
    said = refused("serving", "--observation=84x84")
    assert "--observation 84x84: expected as 84x84x1:uint8 or 4:float32" in said
