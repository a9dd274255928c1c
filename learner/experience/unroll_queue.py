"""The bounded FIFO of finished unrolls, between acting and learning."""

import threading
import time
from collections import deque
from collections.abc import Mapping

import numpy as np

from learner.telemetry.statistics import Clock, Stopwatch


class UnrollQueue:
    """Finished unrolls, by their column in the pool, first in, first out.

    When it is full, acting waits (`wait_for_room`): nothing is dropped, and no unroll gets older
    than the queue is long. One batch of steps may finish several unrolls at once, so the depth can
    pass the capacity by the number of environments in that batch.

    `_lock` guards every field.

    Args:
        capacity: unrolls that make it full.
        lock_step: unrolls keep their room until they are trained on (`trained`), so that acting waits
            for the weights that come of them.
    """

    def __init__(self, capacity: int, *, lock_step: bool = False, clock: Clock = time.monotonic) -> None:
        self._capacity = capacity
        self._lock_step = lock_step
        self._training = 0
        self._columns: deque[int] = deque()
        self._closed = False
        self._waits = 0
        self._full = Stopwatch(clock)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    def wait_for_room(self) -> bool:
        """Block while the queue is full. False if it was closed."""
        with self._lock:
            if not self._has_room() and not self._closed:
                self._waits += 1
                self._changed.wait_for(lambda: self._closed or self._has_room())
            return not self._closed

    def has_room(self) -> bool:
        """Whether `wait_for_room` would return at once, and True. Never blocks."""
        with self._lock:
            return self._has_room() and not self._closed

    def _has_room(self) -> bool:
        return len(self._columns) + self._training < self._capacity

    def _note_change(self) -> None:
        self._full.note(not self._has_room())
        self._changed.notify_all()

    def put(self, columns: np.ndarray) -> None:
        """Append finished unrolls, int [n]. Never blocks; see `wait_for_room`."""
        with self._lock:
            self._columns.extend(columns.tolist())
            self._note_change()

    def take(self, count: int) -> np.ndarray | None:
        """The `count` oldest unrolls, int64 [count]; blocks until there are as many. None if closed."""
        with self._lock:
            self._changed.wait_for(lambda: self._closed or len(self._columns) >= count)
            if self._closed:
                return None
            return self._taken(count)

    def poll(self, most: int) -> np.ndarray:
        """The oldest unrolls, at most so many, of those that wait now: int64 [n]. Never blocks."""
        with self._lock:
            return self._taken(min(most, len(self._columns)))

    def _taken(self, count: int) -> np.ndarray:
        taken = [self._columns.popleft() for _ in range(count)]
        if self._lock_step:
            self._training += count
        self._note_change()
        return np.array(taken, np.int64)

    def trained(self, count: int) -> None:
        """`count` unrolls that were taken have been trained on."""
        if self._lock_step:
            with self._lock:
                self._training -= count
                self._note_change()

    def close(self) -> None:
        """Wake and turn away everyone who waits. Idempotent."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def statistics(self) -> Mapping[str, float]:
        with self._lock:
            return {
                "depth": len(self._columns),
                "capacity": self._capacity,
                "full_waits": self._waits,
                "full_seconds": self._full.seconds(),
            }
