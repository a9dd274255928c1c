"""The order of rows, against the contract's rules one row at a time."""

import numpy as np
import pytest

from learner.flags import ALL_WIRE_FLAGS, LAST, LEASE_START
from learner.serving.row_order import RowOrder
from protos import inference_pb2 as pb
from protos.errors import InvalidRequest

ENVIRONMENTS = 4


class SlowOrder:
    """The rules of inference.proto, for one environment."""

    def __init__(self) -> None:
        self.started = self.between = self.busy = False

    def allows(self, flags: int, reward: float) -> bool:
        first, last = bool(flags & pb.FIRST), bool(flags & LAST)
        if flags > ALL_WIRE_FLAGS or not np.isfinite(reward) or self.busy or (first and last):
            return False
        if first and reward != 0:
            return False
        return first if self.between else not (first and self.started)

    def take_in(self, flags: int) -> int:
        new, self.started, self.busy = not self.started, True, True
        self.between = bool(flags & LAST)
        return flags | LEASE_START if new else flags


WILD = [0, 0, 0, 1, 2, 3, 4, 4, 5, 6, 7, 8]
CALM = [0] * 50 + [pb.FIRST] * 4 + [pb.TERMINATED]


@pytest.mark.parametrize("choices", [WILD, CALM], ids=["wild", "calm"])
@pytest.mark.parametrize("seed", range(3))
def test_rows_are_judged_as_one_at_a_time(seed: int, choices: list[int]) -> None:
    rng = np.random.default_rng(seed)
    order, slow = RowOrder(ENVIRONMENTS), [SlowOrder() for _ in range(ENVIRONMENTS)]
    accepted = refused = 0
    for _ in range(3000):
        count = rng.integers(1, ENVIRONMENTS + 1)
        rows = np.sort(rng.permutation(ENVIRONMENTS)[:count])
        index = slice(None) if count == ENVIRONMENTS else rows
        flags = rng.choice(choices, count).astype(np.uint8)
        rewards = [0.0, 0.0, 0.0, 0.0, 1.5, np.nan, np.inf] if choices is WILD else [0.0] * 30 + [np.nan]
        reward = rng.choice(rewards, count).astype(np.float32)
        allowed = all(slow[row].allows(int(f), r) for row, f, r in zip(rows, flags, reward, strict=True))
        if allowed:
            accepted += 1
            order.check(index, reward, flags)
            taken = order.take_in(index, flags)
            assert taken.tolist() == [
                slow[row].take_in(int(f)) for row, f in zip(rows, flags, strict=True)
            ]
        else:
            refused += 1
            with pytest.raises(InvalidRequest, match=r"^environment \d: expected .*, found .*$"):
                order.check(index, reward, flags)
        if rng.random() < 0.8:
            order.answered(slice(None))
            for environment in slow:
                environment.busy = False
    assert accepted > 100
    assert refused > 100


def test_flags_of_a_message_are_not_written_to() -> None:
    flags = np.zeros(ENVIRONMENTS, np.uint8)
    flags.setflags(write=False)
    order = RowOrder(ENVIRONMENTS)
    assert order.take_in(slice(None), flags).tolist() == [LEASE_START] * ENVIRONMENTS
    order.answered(slice(None))
    assert order.take_in(slice(None), flags) is flags
