"""A second of serving."""

from typing import Any

import pytest

from tests.benchmarks.running import refused, run


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return run(
        "serving",
        "--observation=4:float32",
        "--actors=2",
        "--envs=3",
        "--seconds=1",
        "--warm-up-seconds=0.2",
        "--unroll-length=2",
    )


def test_serving_is_compared_with_its_limits(result: dict[str, Any]) -> None:
    serving, echo, policy = result["serving"], result["echo"], result["policy"]
    rates = [part["observations_per_second"] for part in (echo, policy)]
    limit = 1 / sum(1 / rate for rate in rates)
    assert result["limit_observations_per_second"] == pytest.approx(limit)
    assert result["ratio"] == pytest.approx(serving["observations_per_second"] / limit)
    costs = [part["cpu_seconds_per_million"] for part in (echo, policy)]
    assert result["cpu_ratio"] == pytest.approx(sum(costs) / serving["cpu_seconds_per_million"])


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


def test_a_malformed_observation_is_refused() -> None:
    said = refused("serving", "--observation=84x84")
    assert "--observation 84x84: expected as 84x84x1:uint8 or 4:float32" in said
