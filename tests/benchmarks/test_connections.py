"""A second with one connection and one with sixteen."""

from typing import Any

import pytest

from tests.benchmarks.running import refused, run


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return run(
        "connections",
        "--levels=[1,16,20]",
        "--processes=2",
        "--seconds=0.5",
        "--warm-up-seconds=0.2",
        "--echo",
    )


@pytest.mark.parametrize("whose", ["learner", "echo"])
def test_every_level_is_measured(result: dict[str, Any], whose: str) -> None:
    part = result if whose == "learner" else result["echo"]
    assert [level["connections"] for level in part["levels"]] == [1, 16, 20]
    for level in part["levels"]:
        assert level["messages_per_second"] > 0
        assert level["server_cpu_us_per_message"] > 0
        assert level["client_cpu_us_per_message"] > 0
        assert 0 < level["round_trip_ms"]["p50"] <= level["round_trip_ms"]["p99"]
        assert level["resident_bytes"] > 1e6
    cost = [level["server_cpu_us_per_message"] for level in part["levels"]]
    assert part["cost_ratio"] == pytest.approx(cost[2] / cost[1])


def test_batches_are_no_larger_than_the_streams_are_many(result: dict[str, Any]) -> None:
    one, sixteen, twenty = (level["mean_batch"] for level in result["levels"])
    assert one == 1
    assert 1 < sixteen <= 16
    assert 1 < twenty <= 20


def test_levels_out_of_order_are_refused() -> None:
    assert "--levels [16, 1]: expected ascending" in refused("connections", "--levels=[16,1]")
