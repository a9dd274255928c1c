"""Training batches from the replay: finished unrolls go in as they come, samples go out as often as
they may."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from learner.experience.prefetch import Prepared
from learner.experience.rate_limiter import RateLimiter
from learner.experience.replay import Replay, Sample
from learner.experience.trajectory import Batch
from learner.experience.unroll_queue import UnrollQueue
from learner.experience.unrolls import RowSpec, UnrollPool
from protos.errors import CheckpointError, TrainingFailure

logger = logging.getLogger(__name__)

HOPELESS_TURNS = 10
"""How many times a full replay may be replaced while no sequence in it is ever whole."""


Gather = Callable[[Sample], Batch]
"""How a sample's rows become a batch."""


class ReplayedBatches:
    """Moves unrolls from the queue into the replay, and draws batches from it.

    One thread, the prefetch thread, both inserts and samples, so that no unroll is evicted while its
    rows are copied. While it may not insert, it takes nothing from the queue, which fills up: that is
    how acting is held back.

    `_lock` guards `_training` and `_closed`. `_moving` is held while unrolls are inserted, evicted and
    drawn, so that `state` finds those that are kept, and the draws, as they are; it guards `_untrained`.

    Args:
        queue: of finished unrolls.
        pool: where they are.
        replay: which of them are kept.
        limiter: of samples and inserts.
        gather: makes the batch of a sample.
        batch_size: B.
        importance_exponent: beta of now.
        lock_step: a batch is drawn only when the one before has been trained on and has given its
            priorities, and acting waits until no more may be drawn.
    """

    METADATA = ("unrolls", "largest_priority", "limiter", "generator")
    """Names of the plain values among what `state` gives."""

    def __init__(
        self,
        queue: UnrollQueue,
        pool: UnrollPool,
        replay: Replay,
        limiter: RateLimiter,
        gather: Gather,
        *,
        batch_size: int,
        importance_exponent: Callable[[], float],
        lock_step: bool = False,
    ) -> None:
        self._queue = queue
        self._pool = pool
        self._replay = replay
        self._limiter = limiter
        self._gather = gather
        self._batch_size = batch_size
        self._importance_exponent = importance_exponent
        self._lock_step = lock_step
        self._warned = False
        self._hopeless = 0
        """unrolls inserted since the replay is full and has nothing to draw"""
        self._inserted = 0
        self._untrained: deque[dict[str, Any]] = deque()
        """what each batch that has not been trained on was drawn from, oldest first"""
        self._training = False
        self._closed = False
        self._moving = threading.Lock()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    def next_batch(self) -> Prepared | None:
        if self._lock_step and not self._wait_for_training():
            return None
        if not self._fill():
            return None
        with self._moving:
            self._untrained.append(self._replay.generator())
            sample = self._replay.sample(self._batch_size, self._importance_exponent())
            self._limiter.sampled()
        batch = self._gather(sample)._replace(weight=sample.weights)
        with self._lock:
            self._training = True
        return Prepared(batch, partial(self._trained, sample))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def statistics(self) -> Mapping[str, float]:
        kept = self._replay.statistics()
        return {
            **kept,
            "transitions": kept["unrolls"] * self._pool.length,
            "bytes": kept["unrolls"] * self._pool.bytes_per_column,
            **self._limiter.statistics(),
        }

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """What a checkpoint must hold to go on: copies of the arrays, and plain JSON values.

        What was drawn and has not been trained on is as if it had not been drawn: who goes on from here
        draws it again. By the thread that trains, between two updates.
        """
        with self._moving:
            columns = self._replay.kept()
            proportions, largest = self._replay.priorities()
            arrays = {name: array.take(columns, axis=1) for name, array in self._pool.stored().items()}
            metadata = {
                "unrolls": len(columns),
                "largest_priority": largest,
                "limiter": self._limiter.state(untrained=len(self._untrained)),
                "generator": self._untrained[0] if self._untrained else self._replay.generator(),
            }
            # Where they were too: what a random number draws depends on it.
            return {**arrays, "proportions": proportions[None], "columns": columns[None]}, metadata

    def expected(self, unrolls: int) -> dict[str, RowSpec]:
        """Shapes and dtypes of the arrays of a saved replay of so many unrolls."""
        specs = {
            name: RowSpec((array.shape[0], unrolls, *array.shape[2:]), array.dtype)
            for name, array in self._pool.stored().items()
        }
        return specs | {
            "proportions": RowSpec((1, unrolls, self._replay.windows), np.dtype(np.float64)),
            "columns": RowSpec((1, unrolls), np.dtype(np.int64)),
        }

    def restore(self, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> int:
        """Go on from what `state` gave. Before anything else happens here.

        Returns:
            The serial of the next unroll to finish.

        Raises:
            CheckpointError: it is not what `state` gave.
        """
        try:
            return self._restore(arrays, metadata)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the checkpoint's replay is incomplete: {type(error).__name__}: {error}"
            ) from error

    def _restore(self, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> int:
        # With less room than before, the newest stay.
        newest = slice(max(0, metadata["unrolls"] - self._replay.capacity), None)
        arrays = {name: array[:, newest] for name, array in arrays.items()}
        serials, continues = arrays["serial"][0], arrays["continues"][0]
        columns = self._pool.acquire_again(arrays["columns"][0])
        for name, stored in self._pool.stored().items():
            stored[:, columns] = arrays[name]
        self._replay.insert(columns, serials, continues)
        self._replay.set_priorities(arrays["proportions"][0], metadata["largest_priority"])
        self._replay.set_generator(metadata["generator"])
        self._limiter.restore(metadata["limiter"])
        return int(serials.max(initial=-1)) + 1

    def _fill(self) -> bool:
        """Insert what may be inserted, until a batch may be drawn. False if the queue was closed."""
        while True:
            missing = self._limiter.min_size - self._replay.unrolls * self._pool.length
            ready = missing <= 0 and self._replay.has_items
            # Without anything to draw, unrolls are what is missing, whatever the samples owe.
            room = self._columns(self._limiter.insertable() if ready else max(missing, 1))
            columns = self._queue.poll(room)
            if columns.size:
                self._insert(columns)
            elif ready and self._limiter.may_sample():
                if room == 0:
                    self._limiter.insert_waited()
                return True
            elif not self._wait_for_unrolls():
                return False

    def _columns(self, transitions: int) -> int:
        """The unrolls that hold so many transitions."""
        return -(-transitions // self._pool.length)

    def _wait_for_unrolls(self) -> bool:
        """Insert the next unroll once it is there. False if the queue was closed."""
        self._limiter.sample_waited()
        self._let_act()
        columns = self._queue.take(1)
        if columns is not None:
            self._insert(columns)
        return columns is not None

    def _insert(self, columns: np.ndarray) -> None:
        pool = self._pool
        with self._moving:
            evicted = self._replay.insert(columns, pool.serial[columns], pool.continues[columns])
            pool.release(evicted)
            self._limiter.inserted(len(columns) * pool.length)
        if evicted.size:
            self._check_hope(len(columns))
        self._inserted += len(columns)

    def _check_hope(self, inserted: int) -> None:
        """Warn of a full replay without anything to draw, and raise if it stays so: training would
        never start, and a run ends with an update."""
        if self._replay.has_items:
            self._hopeless = 0
            return
        if not self._warned:
            self._warned = True
            logger.warning(
                "the replay is full, and no sequence in it is whole: the unrolls of too many "
                "environments lie between those of each one. Raise --replay-capacity or "
                "--replay-gigabytes"
            )
        self._hopeless += inserted
        if self._hopeless > HOPELESS_TURNS * self._replay.capacity:
            raise TrainingFailure(
                f"the replay keeps {self._replay.capacity} unrolls, and no sequence in it becomes "
                "whole: raise --replay-capacity or --replay-gigabytes, or run fewer environments"
            )

    def _let_act(self) -> None:
        """In lock-step, the unrolls that were taken keep their room in the queue until now."""
        self._queue.trained(self._inserted)
        self._inserted = 0

    def _wait_for_training(self) -> bool:
        with self._lock:
            self._changed.wait_for(lambda: self._closed or not self._training)
            return not self._closed

    def _trained(self, sample: Sample, priorities: np.ndarray | None) -> None:
        if priorities is not None:
            self._replay.update(sample, priorities)
        with self._moving:
            self._untrained.popleft()
        with self._lock:
            self._training = False
            self._changed.notify_all()
