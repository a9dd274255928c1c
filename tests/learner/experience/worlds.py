"""Environments whose every number tells where it was made, and the unrolls they should become."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from learner.experience.trajectory import Batch
from learner.experience.unrolls import Layout, RowSpec, Steps
from learner.flags import LEASE_START
from protos import inference_pb2 as pb
from protos.specs import ArraySpec

LAYOUT = Layout(
    observation=(
        ArraySpec("image", (2, 2), np.dtype(np.uint8)),
        ArraySpec("vector", (3,), np.dtype(np.float32)),
    ),
    record={
        "action": RowSpec((), np.dtype(np.int64)),
        "logits": RowSpec((2,), np.dtype(np.float32)),
    },
    state={
        "cell": RowSpec((4,), np.dtype(np.float32)),
        "age": RowSpec((), np.dtype(np.int32)),
    },
)


@dataclass(frozen=True)
class Row:
    """One step of one environment."""

    image: np.ndarray
    vector: np.ndarray
    reward: float
    flags: int
    action: int
    logits: np.ndarray
    version: int
    cell: np.ndarray
    """memory before this row"""


@dataclass
class World:
    """The environments of some slots, their policy, and (in `unrolls`) the slow truth about them."""

    length: int
    rng: np.random.Generator
    version: int = 0
    rows: dict[int, list[Row]] = field(default_factory=dict)
    """rows of each slot's present lease"""
    unrolls: list[list[Row]] = field(default_factory=list)
    """finished, in the order in which they finished"""
    asked: list[np.ndarray] = field(default_factory=list)
    """what `state_before` was asked for"""

    def step(self, slots: Sequence[int]) -> Steps:
        """Step these slots, in this order."""
        rows = [self._row(slot) for slot in slots]
        for slot, row in zip(slots, rows, strict=True):
            lease = self.rows.setdefault(slot, [])
            lease.append(row)
            if len(lease) > 1 and (len(lease) - 1) % self.length == 0:
                self.unrolls.append(lease[-1 - self.length :])
        cells = np.array([row.cell for row in rows], np.float32).reshape(-1, 4)

        def state_before(asked: np.ndarray) -> dict[str, np.ndarray]:
            self.asked.append(asked)
            return {"cell": cells[asked], "age": cells[asked, 0].astype(np.int32)}

        return Steps(
            slots=np.array(slots, np.int32),
            observation=[np.array([r.image for r in rows]), np.array([r.vector for r in rows])],
            reward=np.array([r.reward for r in rows], np.float32),
            flags=np.array([r.flags for r in rows], np.uint8),
            record={
                "action": np.array([r.action for r in rows]),
                "logits": np.array([r.logits for r in rows]),
            },
            version=self.version,
            state_before=state_before,
        )

    def end_lease(self, slots: Sequence[int]) -> tuple[int, int]:
        """The leases of these slots are over; how many unrolls and transitions that loses."""
        lost = [(len(self.rows.pop(slot)) - 1) for slot in slots if slot in self.rows]
        # An unroll's last row begins the next one, so that there is always one to lose.
        return len(lost), sum(transitions % self.length for transitions in lost)

    def begins(self, slots: Sequence[int]) -> set[int]:
        """Positions in `slots` where the step just made began an unroll."""
        return {
            position
            for position, slot in enumerate(slots)
            if (len(self.rows[slot]) - 1) % self.length == 0
        }

    def _row(self, slot: int) -> Row:
        lease = self.rows.get(slot, [])
        ended = pb.TERMINATED | pb.TRUNCATED
        if not lease:
            # A lease may begin in the middle of an episode.
            flags = LEASE_START | int(self.rng.choice([0, pb.FIRST]))
        elif lease[-1].flags & ended:
            flags = pb.FIRST
        else:
            flags = int(self.rng.choice([0, 0, 0, pb.TERMINATED, pb.TRUNCATED]))
        return Row(
            image=self.rng.integers(0, 256, (2, 2), np.uint8),
            vector=self.rng.normal(size=3).astype(np.float32),
            reward=float(self.rng.integers(-9, 9)),
            flags=flags,
            action=int(self.rng.integers(2**40)),
            logits=self.rng.normal(size=2).astype(np.float32),
            version=self.version,
            cell=np.full(4, self.rng.integers(1_000_000)),
        )


def expected_batch(unrolls: Sequence[Sequence[Row]]) -> Batch:
    """The batch of these unrolls, element by element."""

    def stack(name: str, dtype: Any) -> np.ndarray:
        times = range(len(unrolls[0]))
        return np.array([[getattr(u[t], name) for u in unrolls] for t in times], dtype)

    flags = stack("flags", np.int64)
    return Batch(
        observation=(stack("image", np.uint8), stack("vector", np.float32)),
        reward=stack("reward", np.float32),
        first=flags & pb.FIRST > 0,
        terminated=flags & pb.TERMINATED > 0,
        truncated=flags & pb.TRUNCATED > 0,
        record={"action": stack("action", np.int64), "logits": stack("logits", np.float32)},
        version=stack("version", np.int64),
        initial_state={
            "cell": np.array([unroll[0].cell for unroll in unrolls], np.float32),
            "age": np.array([unroll[0].cell[0] for unroll in unrolls], np.int32),
        },
        weight=np.ones(len(unrolls), np.float32),
    )


def assert_same_batch(found: Batch, expected: Batch) -> None:
    """Every array equal, in shape and dtype too."""
    for name in Batch._fields:
        one, other = (_flat(getattr(batch, name)) for batch in (found, expected))
        assert one.keys() == other.keys()
        for key, array in one.items():
            assert array.dtype == other[key].dtype, f"{name} {key}"
            np.testing.assert_array_equal(array, other[key], err_msg=f"{name} {key}")


def _flat(part: Any) -> dict[Any, np.ndarray]:
    if isinstance(part, Mapping):
        return dict(part)
    return dict(enumerate(part)) if isinstance(part, tuple) else {"": part}
