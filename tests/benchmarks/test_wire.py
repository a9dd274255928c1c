"""Counted bytes against what must be in them."""

import pytest

from benchmarks.wire import measure_case
from tests.benchmarks.running import refused, run

# Beyond the payload, a message has an index of 4 bytes for each environment, and what protobuf, gRPC,
# HTTP/2 and its acknowledgements add: this much at the most.
FRAMING = 400


def test_the_command_measures_every_case() -> None:
    result = run("wire", '--cases=["2x4:float32","1x8x8x1:uint8"]', "--steps=5")
    cases = {case["case"]: case for case in result["cases"]}
    assert cases.keys() == {"2x4:float32", "1x8x8x1:uint8"}
    assert cases["2x4:float32"]["payload_bytes"] == 16 + 4 + 1 + 8
    assert cases["1x8x8x1:uint8"]["payload_bytes"] == 64 + 4 + 1 + 8


@pytest.mark.parametrize("case", ["1x4:float32", "32x4:float32", "8x84x84x1:uint8"])
def test_no_fewer_bytes_than_the_payload_and_not_many_more(case: str) -> None:
    counted = measure_case(case, 6, 20)
    num_envs, up, down = counted["environments"], counted["wire_bytes_up"], counted["wire_bytes_down"]
    assert down >= 8
    assert up >= counted["payload_bytes"] - 8
    assert counted["wire_bytes"] == pytest.approx(up + down)
    assert counted["ratio"] == pytest.approx((up + down) / counted["payload_bytes"])
    assert 4 * num_envs <= counted["overhead_bytes_per_message"] <= 4 * num_envs + FRAMING


def test_a_malformed_case_is_refused() -> None:
    assert "--cases 0x4:float32: expected as" in refused("wire", '--cases=["0x4:float32"]')
