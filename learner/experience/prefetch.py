"""The data-prefetch thread: finished unrolls become training batches on the device, one ahead."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from learner.experience.channel import Channel
from learner.experience.trajectory import Batch
from learner.experience.unroll_queue import UnrollQueue
from learner.experience.unrolls import UnrollPool


class Prepared(NamedTuple):
    """A training batch that carries its own reply."""

    batch: Batch
    on_trained: Callable[[np.ndarray | None], None]
    """to be called once the weights that came of it are published, with the new priorities of its
    unrolls, float32 [B], if the algorithm has any"""


class BatchSource(Protocol):
    """Where training batches come from, as NumPy arrays."""

    def next_batch(self) -> Prepared | None:
        """The next batch; blocks until there is one. None if the queue was closed."""
        ...

    def close(self) -> None:
        """End a wait for anything but the queue. Any thread may call it. Idempotent."""
        ...


class FreshBatches:
    """Batches of unrolls in the order in which they finished, each trained on once."""

    def __init__(self, queue: UnrollQueue, pool: UnrollPool, batch_size: int) -> None:
        self._queue = queue
        self._pool = pool
        self._batch_size = batch_size

    def next_batch(self) -> Prepared | None:
        columns = self._queue.take(self._batch_size)
        if columns is None:
            return None
        batch = self._pool.gather(columns)
        self._pool.release(columns)
        return Prepared(batch, self._trained)

    def close(self) -> None:
        pass

    def _trained(self, priorities: np.ndarray | None) -> None:
        self._queue.trained(self._batch_size)


class Prefetcher:
    """Iterates over training batches, of which the next is prepared while one is trained on.

    `run` is the thread's body. `to_device` copies a batch of arrays to where the training runs.
    """

    def __init__(self, source: BatchSource, to_device: Callable[[Batch], Batch]) -> None:
        self._source = source
        self._to_device = to_device
        self._ready: Channel[Prepared] = Channel(1)

    def run(self) -> None:
        """Prepare batches until the queue or this prefetcher is closed."""
        # Room first: a batch made ahead of it would be one update older, and hold device memory.
        while self._ready.wait_for_room():
            prepared = self._source.next_batch()
            if prepared is None:
                return
            self._ready.put(prepared._replace(batch=self._to_device(prepared.batch)))

    def __iter__(self) -> Iterator[Prepared]:
        """Batches for training; ends when closed."""
        return iter(self._ready)

    def close(self) -> None:
        """End the iteration, and the thread where it stands; one that waits for unrolls ends when the
        queue is closed. Idempotent."""
        self._ready.close()
        self._source.close()

    def statistics(self) -> Mapping[str, float]:
        return {"ready": len(self._ready)}
