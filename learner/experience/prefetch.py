"""The data-prefetch thread: finished unrolls become training batches on the device, one ahead."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from learner.experience.channel import Channel
from learner.experience.trajectory import Batch
from learner.experience.unroll_queue import UnrollQueue
from learner.experience.unrolls import UnrollPool


class Prepared(NamedTuple):
    """A training batch that carries its own reply."""

    batch: Batch
    """on the device"""
    on_trained: Callable[[np.ndarray | None], None]
    """to be called once the weights that came of it are published, with the new priorities of its
    unrolls, float32 [B], if the algorithm has any"""


class Prefetcher:
    """Iterates over training batches, of which the next is prepared while one is trained on.

    `run` is the thread's body. `to_device` copies a batch of arrays to where the training runs.
    """

    def __init__(
        self,
        queue: UnrollQueue,
        pool: UnrollPool,
        batch_size: int,
        to_device: Callable[[Batch], Batch],
    ) -> None:
        self._queue = queue
        self._pool = pool
        self._batch_size = batch_size
        self._to_device = to_device
        self._ready: Channel[Prepared] = Channel(1)

    def run(self) -> None:
        """Prepare batches until the queue or this prefetcher is closed."""
        # Room first: a batch made ahead of it would be one update older, and hold device memory.
        while self._ready.wait_for_room():
            columns = self._queue.take(self._batch_size)
            if columns is None:
                return
            batch = self._pool.gather(columns)
            self._pool.release(columns)
            self._ready.put(Prepared(self._to_device(batch), self._trained))

    def _trained(self, priorities: np.ndarray | None) -> None:
        self._queue.trained(self._batch_size)

    def __iter__(self) -> Iterator[Prepared]:
        """Batches for training; ends when closed."""
        return iter(self._ready)

    def close(self) -> None:
        """End the iteration, and the thread where it stands; one that waits for unrolls ends when the
        queue is closed. Idempotent."""
        self._ready.close()

    def statistics(self) -> Mapping[str, float]:
        return {"ready": len(self._ready)}
