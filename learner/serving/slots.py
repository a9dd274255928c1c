"""Slots: the learner's numbering of environments. A lease is a set of them."""

from collections.abc import Mapping

import numpy as np

from protos.errors import NoCapacity


class Slots:
    """Hands out the slots 0 to `capacity` - 1. Used on the event loop only."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = list(range(capacity - 1, -1, -1))

    def lease(self, count: int) -> np.ndarray:
        """`count` free slots, int32 [count].

        Raises:
            NoCapacity: fewer are free.
        """
        if count > len(self._free):
            raise NoCapacity(
                f"expected at most {len(self._free)} environments (that many of {self.capacity} slots "
                f"are free), found {count}: wait for leases to end, or raise --max-environments"
            )
        return np.array([self._free.pop() for _ in range(count)], np.int32)

    def release(self, slots: np.ndarray) -> None:
        """Give leased slots back."""
        self._free.extend(reversed(slots.tolist()))

    @property
    def leased(self) -> int:
        """How many are leased now. Any thread may ask."""
        return self.capacity - len(self._free)

    def statistics(self) -> Mapping[str, float]:
        return {"leased": self.leased, "capacity": self.capacity}
