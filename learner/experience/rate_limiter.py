"""How often experience is trained on: neither acting nor training may run far ahead of the other."""

import math
from collections.abc import Mapping


class RateLimiter:
    """Holds trained transitions at `samples_per_insert` for each inserted one.

    It knows one number, the transitions that the samples owe: those inserted, less the first
    `min_size`, times the ratio, less those sampled. Samples wait while it is negative, and inserts
    while it is more than one batch, so one of them may always go on. One thread counts; others may read
    `state` and `statistics`.

    Args:
        samples_per_insert: transitions to train on for each one inserted.
        min_size: inserted transitions that come before the first sample, and owe none.
        batch: transitions that one sample trains on.
    """

    def __init__(self, samples_per_insert: float, min_size: int, batch: int) -> None:
        self.min_size = min_size
        self._ratio = samples_per_insert
        self._batch = batch
        self._inserted = 0
        self._sampled = 0
        self._restored = (0, 0)
        self._sample_waits = 0
        self._insert_waits = 0

    @property
    def owed(self) -> float:
        """Transitions that the samples owe; negative if they are ahead."""
        return (self._inserted - self.min_size) * self._ratio - self._sampled

    def may_sample(self) -> bool:
        """Whether inserts are not behind."""
        return self.owed >= 0

    def insertable(self) -> int:
        """Transitions to insert until the samples must catch up; 0 if they must now."""
        return max(0, math.ceil((self._batch - self.owed) / self._ratio))

    def inserted(self, transitions: int) -> None:
        """Count transitions that were inserted."""
        self._inserted += transitions

    def sampled(self) -> None:
        """Count a batch that is trained on."""
        self._sampled += self._batch

    def sample_waited(self) -> None:
        """Count that training had to wait for inserts."""
        self._sample_waits += 1

    def insert_waited(self) -> None:
        """Count that unrolls had to wait for training."""
        self._insert_waits += 1

    def state(self, untrained: int = 0) -> dict[str, int]:
        """What a checkpoint must hold to go on, as plain JSON values, if the last `untrained` batches
        that were drawn are to be drawn again."""
        return {"inserted": self._inserted, "sampled": self._sampled - untrained * self._batch}

    def restore(self, state: Mapping[str, int]) -> None:
        """Go on from a saved `state`."""
        self._restored = self._inserted, self._sampled = state["inserted"], state["sampled"]

    def statistics(self) -> Mapping[str, float]:
        after_start = self._inserted - self.min_size
        return {
            "inserted": self._inserted,
            "sampled": self._sampled,
            "inserted_since_start": self._inserted - self._restored[0],
            "sampled_since_start": self._sampled - self._restored[1],
            "samples_per_insert": self._sampled / after_start if after_start > 0 else 0.0,
            "sample_waits": self._sample_waits,
            "insert_waits": self._insert_waits,
        }
