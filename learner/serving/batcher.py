"""Requests of many actors become batches, without a timer.

While one batch runs, requests accumulate in the next buffer; when an inference thread is free it
takes all that wait, up to the maximum. So two actors never wait for a clock, and a thousand fill
the batch by themselves.

Who submits says when it has no more for now, and a free thread waits for that: the messages that have
come together become one batch, and are not taken one by one while the others are still being checked.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from learner.aligned import aligned_zeros
from learner.telemetry.statistics import Clock, Durations, Histogram, Spread
from protos.specs import ArraySpec


class Request(NamedTuple):
    """One step message of n environments, checked and ready to be answered.

    The arrays may be views of the message: the batcher copies them once.
    """

    slots: np.ndarray
    """int32 [n], distinct"""
    observation: Sequence[np.ndarray]
    """[n, *shape] for each leaf"""
    reward: np.ndarray
    """float32 [n]"""
    flags: np.ndarray
    """uint8 [n]: StepFlag bits and LEASE_START"""
    reply: Callable[[np.ndarray, int], None]
    """takes the actions [n, *shape] and the policy's version; called by the thread that infers"""


class InferenceBatch:
    """Rows of several requests in preallocated arrays; carries its own reply.

    Rows from `size` on are padding: they belong to the scratch slot, and what they hold is left
    over from earlier batches.

    The arrays are filled again and again, and the policy call's tensors may share their memory: who
    keeps anything made of a batch for longer than its turn copies it.
    """

    def __init__(self, observation: Sequence[ArraySpec], capacity: int, scratch_slot: int) -> None:
        self.observation = [aligned_zeros((capacity, *leaf.shape), leaf.dtype) for leaf in observation]
        """[capacity, *shape] for each leaf"""
        # In one array, because handing an array to TensorFlow costs the same whatever its size.
        self.rows = np.zeros((4, capacity), np.int32)
        """int32 [4, capacity]: slots, flags, the bits of the float32 rewards, and in [3, 0] the number
        of the policy call"""
        self.slots, self.flags = self.rows[0], self.rows[1]
        """int32 [capacity] each, views of `rows`"""
        self.reward = self.rows[2].view(np.float32)
        """float32 [capacity], a view of `rows`"""
        self.slots[:] = scratch_slot
        self.size = 0
        """n, rows that are no padding"""
        self.since = 0.0
        """when the first of its requests came"""
        self.inputs: dict[int, Any] = {}
        """the policy call's views of the first rows, by how many: made and kept here by `PolicyFunction`
        alone, in the batch's turn"""
        self._scratch_slot = scratch_slot
        self._requests: list[Request] = []

    def set_call(self, number: int) -> None:
        """Number the policy call that this batch is for, of which its random numbers are made."""
        self.rows[3, 0] = number & 0x7FFF_FFFF

    def fits(self, request: Request) -> bool:
        return self.size + len(request.slots) <= len(self.slots)

    def add(self, request: Request) -> None:
        """Copy the request's rows in behind the others."""
        rows = slice(self.size, self.size + len(request.slots))
        for buffer, leaf in zip(self.observation, request.observation, strict=True):
            buffer[rows] = leaf
        self.reward[rows] = request.reward
        self.flags[rows] = request.flags
        self.slots[rows] = request.slots
        self.size = rows.stop
        self._requests.append(request)

    def reply(self, actions: np.ndarray, version: int) -> None:
        """Answer every request with its rows of `actions` [size or more, *shape]."""
        start = 0
        for request in self._requests:
            stop = start + len(request.slots)
            request.reply(actions[start:stop], version)
            start = stop

    def clear(self) -> None:
        self.slots[: self.size] = self._scratch_slot
        self.size = 0
        self._requests.clear()


class Batcher:
    """Iterates over batches of waiting requests, for one or more inference threads; or gives them to who
    submits (`poll`).

    There is one buffer more than there are consumers, so that filling overlaps inference. A request
    that does not fit into the filling buffer waits in line, and so do all after it.

    `_lock` guards every field, and the buffer that is being filled; `_handed_over` says that it may be
    taken. How many rows a batch has and how long its first request has waited are measured once a batch.
    """

    def __init__(
        self,
        observation: Sequence[ArraySpec],
        *,
        max_rows: int,
        scratch_slot: int,
        consumers: int = 1,
        clock: Clock = time.monotonic,
    ) -> None:
        self.max_rows = max_rows
        """Most rows in a batch, and so in a request."""
        self._free = [InferenceBatch(observation, max_rows, scratch_slot) for _ in range(consumers + 1)]
        self._filling = self._free.pop()
        self._waiting: deque[tuple[Request, float]] = deque()
        """in line, and when each came"""
        self._handed_over = False
        self._closed = False
        self._batches = 0
        self._rows = 0
        self._clock = clock
        self._batch_rows = Histogram([2**power for power in range((max_rows - 1).bit_length() + 1)])
        self._batch_wait = Durations()
        self._lock = threading.Lock()
        self._ready = threading.Condition(self._lock)

    def submit(self, request: Request) -> None:
        """Add a request, to be taken after the next `hand_over` at the latest. Never blocks; dropped if
        the batcher is closed.

        Raises:
            ValueError: it has more than `max_rows` rows, and would never fit.
        """
        if len(request.slots) > self.max_rows:
            raise ValueError(f"expected at most {self.max_rows} rows, found {len(request.slots)}")
        with self._lock:
            if self._closed:
                return
            if self._waiting or not self._filling.fits(request):
                self._waiting.append((request, self._clock()))
            else:
                if not self._filling.size:
                    self._filling.since = self._clock()
                self._filling.add(request)

    def hand_over(self) -> None:
        """Let the requests that were submitted by now be taken. Never blocks."""
        with self._lock:
            if self._filling.size:
                self._handed_over = True
                self._ready.notify()

    def __iter__(self) -> Iterator[InferenceBatch]:
        """Batches as they fill, until closed. A batch is valid until the next one is asked for."""
        while (batch := self._wait()) is not None:
            yield batch
            self.give_back(batch)

    def poll(self) -> InferenceBatch | None:
        """What was submitted and not taken; None if there is nothing, or the batcher is closed. Never
        blocks. Who takes a batch gives it back."""
        with self._lock:
            return self._take() if self._filling.size and not self._closed else None

    def give_back(self, batch: InferenceBatch) -> None:
        """The turn of a batch is over: it may be filled again."""
        with self._lock:
            batch.clear()
            self._free.append(batch)

    def close(self) -> None:
        """End all iterations; requests that wait are never answered. Idempotent."""
        with self._lock:
            self._closed = True
            self._ready.notify_all()

    def statistics(self) -> Mapping[str, float]:
        with self._lock:
            return {
                "batches": self._batches,
                "rows": self._rows,
                "rows_waiting": self._filling.size + sum(len(r.slots) for r, _ in self._waiting),
                "max_rows": self.max_rows,
            }

    def spreads(self) -> Mapping[str, Spread]:
        """Rows of each batch, and seconds that its first request waited to be taken."""
        with self._lock:
            return {"batch_rows": self._batch_rows.spread(), "batch_wait": self._batch_wait.spread()}

    def _wait(self) -> InferenceBatch | None:
        with self._lock:
            self._ready.wait_for(lambda: self._closed or self._handed_over)
            return None if self._closed else self._take()

    def _take(self) -> InferenceBatch:
        batch, self._filling = self._filling, self._free.pop()
        self._fill_from_line()
        self._handed_over = self._filling.size > 0
        if self._handed_over:
            self._ready.notify()
        self._batches += 1
        self._rows += batch.size
        self._batch_rows.add(batch.size)
        self._batch_wait.add(self._clock() - batch.since)
        return batch

    def _fill_from_line(self) -> None:
        if self._waiting:
            self._filling.since = self._waiting[0][1]
        while self._waiting and self._filling.fits(self._waiting[0][0]):
            self._filling.add(self._waiting.popleft()[0])
