"""From answered steps to unrolls of fixed length, in preallocated time-major arrays."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from learner.experience.trajectory import LEASE_START, Batch, State
from learner.experience.unroll_queue import UnrollQueue
from protos import inference_pb2 as pb
from protos.specs import ArraySpec


class RowSpec(NamedTuple):
    """Shape and dtype of one entry of one row."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Layout:
    """What a step and an unroll's beginning consist of, besides reward, flags and version."""

    observation: Sequence[ArraySpec]
    """the leaves, in the order of the environment's spec"""
    record: Mapping[str, RowSpec]
    """what the policy wants stored with each step, by name"""
    state: Mapping[str, RowSpec]
    """the policy's memory before an unroll's first row, by name; empty without one"""


class Steps(NamedTuple):
    """Answered steps of n environments, each in it at most once."""

    slots: np.ndarray
    """int32 [n]"""
    observation: Sequence[np.ndarray]
    """[n, *shape] for each leaf"""
    reward: np.ndarray
    """float32 [n]"""
    flags: np.ndarray
    """uint8 [n]: StepFlag bits of the wire, and LEASE_START"""
    record: Mapping[str, np.ndarray]
    """[n, ...] each: what the policy wants stored"""
    version: int
    """training version of the policy that acted"""
    state_before: Callable[[np.ndarray], State]
    """from row indices [k] to the policy's memory before those rows, [k, ...] each. A function,
    because the memory lives on the inference device and only an unroll's beginning needs it."""

    @property
    def first(self) -> np.ndarray:
        """bool [n]: first row of an episode"""
        return self._has(pb.FIRST)

    @property
    def terminated(self) -> np.ndarray:
        """bool [n]: last row of an episode, which ended by itself"""
        return self._has(pb.TERMINATED)

    @property
    def truncated(self) -> np.ndarray:
        """bool [n]: last row of an episode, which was cut"""
        return self._has(pb.TRUNCATED)

    @property
    def lease_start(self) -> np.ndarray:
        """bool [n]: first row of a lease"""
        return self._has(LEASE_START)

    def _has(self, flag: int) -> np.ndarray:
        return np.asarray(self.flags & flag, bool)


def pool_columns(num_slots: int, queue_capacity: int, batch_size: int) -> int:
    """How many columns are never too few: every slot may be writing one, and finish one more after the
    queue was last seen not full; and prefetch holds a batch of them until it has copied it."""
    return 2 * num_slots + queue_capacity + batch_size


class UnrollPool:
    """Columns of T+1 rows each: the storage of all unrolls, unfinished and finished.

    Rows are written once, where they stay until a training batch is gathered from them. Memory that
    was never written costs nothing (the operating system maps it at the first touch), and columns
    are reused last in, first out, so the pool may be larger than a run ever needs.

    Each column has one user at a time (writer, then queue, then prefetch), so that the arrays need
    no lock; `_lock` guards the free list.
    """

    def __init__(self, layout: Layout, length: int, columns: int) -> None:
        def rows(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
            return np.empty((length + 1, columns, *shape), dtype)

        self.length = length
        """T, transitions in an unroll"""
        self.observation = [rows(leaf.shape, leaf.dtype) for leaf in layout.observation]
        """[T+1, columns, *shape] of its dtype, for each leaf"""
        self.reward = rows((), np.float32)
        """float32 [T+1, columns]"""
        self.flags = rows((), np.uint8)
        """uint8 [T+1, columns]: StepFlag bits of the wire, and LEASE_START"""
        self.version = rows((), np.int64)
        """int64 [T+1, columns]: training version of the policy that acted"""
        self.record = {name: rows(*spec) for name, spec in layout.record.items()}
        """[T+1, columns, ...] each: what the policy wanted stored"""
        self.state = {
            name: np.empty((columns, *spec.shape), spec.dtype) for name, spec in layout.state.items()
        }
        """[columns, ...] each: the policy's memory before row 0"""
        self._free = list(range(columns - 1, -1, -1))
        self._lock = threading.Lock()

    def acquire(self, count: int) -> np.ndarray:
        """`count` free columns, int64 [count]."""
        with self._lock:
            assert count <= len(self._free), "the pool is sized for every slot and a full queue"
            return np.array([self._free.pop() for _ in range(count)], np.int64)

    def release(self, columns: np.ndarray) -> None:
        """Give columns back, whatever is in them."""
        with self._lock:
            self._free.extend(columns.tolist())

    def gather(self, columns: np.ndarray) -> Batch:
        """A copy of finished unrolls as a time-major batch, [T+1, len(columns), ...] each."""

        def take(array: np.ndarray) -> np.ndarray:
            return array.take(columns, axis=1)

        flags = take(self.flags)
        return Batch(
            observation=tuple(take(leaf) for leaf in self.observation),
            reward=take(self.reward),
            first=(flags & pb.FIRST) != 0,
            terminated=(flags & pb.TERMINATED) != 0,
            truncated=(flags & pb.TRUNCATED) != 0,
            record={name: take(array) for name, array in self.record.items()},
            version=take(self.version),
            initial_state={name: array[columns] for name, array in self.state.items()},
            weight=np.ones(len(columns), np.float32),
        )


class UnrollWriter:
    """Writes each environment's steps into its unroll, and finished unrolls into the queue.

    Unrolls have T transitions and so T+1 rows; they cross episodes, and an environment's next
    unroll begins with the last row of the one before. `_lock` guards every field, and the columns
    that are being written.
    """

    def __init__(self, pool: UnrollPool, queue: UnrollQueue, num_slots: int) -> None:
        self._pool = pool
        self._queue = queue
        self._column = np.full(num_slots, -1, np.int64)
        self._time = np.zeros(num_slots, np.int64)
        self._finished = 0
        self._dropped = 0
        self._dropped_steps = 0
        self._lock = threading.Lock()

    def wait_for_room(self) -> bool:
        """Block while the queue is full. False if it was closed."""
        return self._queue.wait_for_room()

    def append(self, steps: Steps) -> None:
        """Store answered steps. Never blocks: `wait_for_room` before."""
        # Fetched from the device before the lock is taken, for which the event loop may wait.
        beginning = self._beginning(steps.slots)
        memory = steps.state_before(beginning) if beginning.size and self._pool.state else {}
        with self._lock:
            self._begin_missing(steps.slots)
            column, time = self._column[steps.slots], self._time[steps.slots]
            self._write(steps, time, column)
            self._time[steps.slots] = time + 1
            done = time == self._pool.length
            if done.any():
                self._finish(steps.slots[done], column[done])
            begun = self._column[steps.slots[beginning]]
            for name, value in memory.items():
                self._pool.state[name][begun] = value

    def drop(self, slots: np.ndarray) -> None:
        """Forget the unfinished unrolls of these slots: their lease is over."""
        with self._lock:
            open_slots = slots[self._column[slots] >= 0]
            self._pool.release(self._column[open_slots])
            self._dropped += len(open_slots)
            # Transitions: row 0 only begins the first, or was the last row of the unroll before.
            self._dropped_steps += int((self._time[open_slots] - 1).sum())
            self._column[open_slots] = -1

    def statistics(self) -> Mapping[str, float]:
        with self._lock:
            return {
                "finished": self._finished,
                "dropped": self._dropped,
                "dropped_steps": self._dropped_steps,
                "unfinished": int((self._column >= 0).sum()),
            }

    def _beginning(self, slots: np.ndarray) -> np.ndarray:
        """Rows that will be row 0 of an unroll. Without the lock: what belongs to a slot changes only
        by its own steps, of which there is one at a time, and after them."""
        column, time = self._column[slots], self._time[slots]
        return np.flatnonzero((column < 0) | (time == self._pool.length))

    def _begin_missing(self, slots: np.ndarray) -> None:
        slots = slots[self._column[slots] < 0]
        if slots.size:
            self._column[slots] = self._pool.acquire(len(slots))
            self._time[slots] = 0

    def _write(self, steps: Steps, time: np.ndarray, column: np.ndarray) -> None:
        pool = self._pool
        for stored, leaf in zip(pool.observation, steps.observation, strict=True):
            stored[time, column] = leaf
        pool.reward[time, column] = steps.reward
        pool.flags[time, column] = steps.flags
        pool.version[time, column] = steps.version
        for name, stored in pool.record.items():
            stored[time, column] = steps.record[name]

    def _finish(self, slots: np.ndarray, finished: np.ndarray) -> None:
        """Hand over the columns that are full, and begin the next with their last rows."""
        begun = self._pool.acquire(len(slots))
        pool = self._pool
        for stored in (*pool.observation, pool.reward, pool.flags, pool.version, *pool.record.values()):
            stored[0, begun] = stored[pool.length, finished]
        self._column[slots] = begun
        self._time[slots] = 1
        self._finished += len(slots)
        self._queue.put(finished)
