"""From answered steps to unrolls of fixed length, in preallocated time-major arrays."""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from learner.experience.trajectory import Batch, State
from learner.experience.unroll_queue import UnrollQueue
from learner.flags import LeaseEnd
from protos import inference_pb2 as pb
from protos.specs import ArraySpec

# What every row and every column has, whatever the environment and the policy.
_REWARD, _FLAGS, _VERSION, _SERIAL = np.float32, np.uint8, np.int64, np.int64


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
    """integers [n]; of np.intp they cost NumPy no conversion"""
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


def pool_columns(num_slots: int, queue_capacity: int, held: int) -> int:
    """How many columns are never too few: every slot may be writing one, and finish one more after the
    queue was last seen not full; and `held` are with whoever took them, until they are released."""
    return 2 * num_slots + queue_capacity + held


def bytes_per_column(layout: Layout, length: int) -> int:
    """Bytes of one finished unroll of `length` transitions, its last row included."""
    row = sum(_bytes(leaf.shape, leaf.dtype) for leaf in layout.observation)
    row += sum(_bytes(*entry) for entry in layout.record.values())
    row += sum(np.dtype(kind).itemsize for kind in (_REWARD, _FLAGS, _VERSION))
    state = sum(_bytes(*entry) for entry in layout.state.values())
    return (length + 1) * row + state + 2 * np.dtype(_SERIAL).itemsize


def _bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    return math.prod(shape) * dtype.itemsize


def _flat(array: np.ndarray) -> np.ndarray:
    """[T+1, columns, ...] as a view of [(T+1) columns, ...]."""
    return array.reshape(-1, *array.shape[2:])


class UnrollPool:
    """Columns of T+1 rows each: the storage of all unrolls, unfinished and finished.

    Rows are written once, where they stay until the column is released: after the one training batch
    that is gathered from them, or when the replay evicts them. Memory that was never written costs
    nothing (the operating system maps it at the first touch), and columns are reused last in, first
    out, so the pool may be larger than a run ever needs.

    Each column has one user at a time (writer, then queue, then prefetch and its replay), so that the
    arrays need no lock; `_lock` guards the free list.
    """

    def __init__(self, layout: Layout, length: int, columns: int) -> None:
        def rows(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
            return np.empty((length + 1, columns, *shape), dtype)

        self.length = length
        """T, transitions in an unroll"""
        self.columns = columns
        """how many there are. Row t of column c is number t * columns + c of the pool's rows"""
        self.bytes_per_column = bytes_per_column(layout, length)
        self.observation = [rows(leaf.shape, leaf.dtype) for leaf in layout.observation]
        """[T+1, columns, *shape] of its dtype, for each leaf"""
        self.reward = rows((), _REWARD)
        """float32 [T+1, columns]"""
        self.flags = rows((), _FLAGS)
        """uint8 [T+1, columns]: StepFlag bits of the wire, and LEASE_START"""
        self.version = rows((), _VERSION)
        """int64 [T+1, columns]: training version of the policy that acted"""
        self.record = {name: rows(*spec) for name, spec in layout.record.items()}
        """[T+1, columns, ...] each: what the policy wanted stored"""
        self.state = {
            name: np.empty((columns, *spec.shape), spec.dtype) for name, spec in layout.state.items()
        }
        """[columns, ...] each: the policy's memory before row 0"""
        self.serial = np.empty(columns, _SERIAL)
        """int64 [columns]: number of the finished unroll, in the order in which they finished"""
        self.continues = np.empty(columns, _SERIAL)
        """int64 [columns]: serial of the unroll whose last row is this one's row 0; -1 if there is none,
        because the lease began with this one"""
        # Views of [(T+1) columns, ...]: one flat index costs NumPy less than two.
        self._flat_observation = [_flat(leaf) for leaf in self.observation]
        self._flat_reward, self._flat_flags = _flat(self.reward), _flat(self.flags)
        self._flat_version = _flat(self.version)
        self._flat_record = [(name, _flat(array)) for name, array in self.record.items()]
        self._free = list(range(columns - 1, -1, -1))
        self._lock = threading.Lock()

    def acquire(self, count: int) -> np.ndarray:
        """`count` free columns, int64 [count]."""
        with self._lock:
            left = len(self._free) - count
            assert left >= 0, "the pool is sized for every slot and a full queue"
            taken = np.array(self._free[left:], np.int64)
            del self._free[left:]
            return taken[::-1]

    def acquire_again(self, columns: np.ndarray) -> np.ndarray:
        """These columns, int64 [n], which an earlier process had, where all of them are free; others in
        their place if this pool has not so many. Returns int64 [n].

        Raises:
            ValueError: one of them is named twice, or is in use.
        """
        if columns.size == 0 or columns.max() >= self.columns:
            return self.acquire(len(columns))
        with self._lock:
            wanted = set(columns.tolist())
            rest = [column for column in self._free if column not in wanted]
            if len(wanted) < len(columns) or len(rest) + len(wanted) != len(self._free):
                raise ValueError("columns: expected free ones, each once")
            self._free = rest
            return columns

    def release(self, columns: np.ndarray) -> None:
        """Give columns back, whatever is in them."""
        with self._lock:
            self._free.extend(columns.tolist())

    def stored(self) -> dict[str, np.ndarray]:
        """Views of all arrays by stable name, [T+1, columns, ...], or [1, columns, ...] of what a column
        has once."""
        rows = {f"observation_{i}": leaf for i, leaf in enumerate(self.observation)}
        rows |= {"reward": self.reward, "flags": self.flags, "version": self.version}
        rows |= {f"record/{name}": array for name, array in self.record.items()}
        whole = {f"state/{name}": array for name, array in self.state.items()}
        whole |= {"serial": self.serial, "continues": self.continues}
        return rows | {name: array[None] for name, array in whole.items()}

    def write(self, rows: np.ndarray, steps: Steps) -> None:
        """Store steps in these of the pool's rows, int64 [n]."""
        for flat, leaf in zip(self._flat_observation, steps.observation, strict=True):
            flat[rows] = leaf
        self._flat_reward[rows] = steps.reward
        self._flat_flags[rows] = steps.flags
        self._flat_version[rows] = steps.version
        for name, flat in self._flat_record:
            flat[rows] = steps.record[name]

    def gather(self, columns: np.ndarray) -> Batch:
        """A copy of finished unrolls as a time-major batch, [T+1, len(columns), ...] each."""
        return self.gather_sequences(columns[None])

    def gather_sequences(self, columns: np.ndarray) -> Batch:
        """A copy of sequences of k unrolls, of which each continues the one before.

        Args:
            columns: int64 [k, B].

        Returns:
            A batch of [k T + 1, B, ...] each; its initial state is that before the first unroll.
        """
        # The row that two unrolls share is the last of the one: row 0 of the other is a copy.
        time = np.tile(np.arange(1, self.length + 1), len(columns))
        column = np.repeat(columns, self.length, axis=0)
        return self._gather(np.append(0, time)[:, None], np.vstack([columns[:1], column]), columns[0])

    def gather_windows(self, columns: np.ndarray, offsets: np.ndarray, length: int) -> Batch:
        """A copy of `length` transitions from row `offsets` int64 [B] on of each unroll, [length + 1, B,
        ...] each. For policies without memory, whose state before any row but 0 is not known."""
        assert not self.state, "the memory before a row in the middle of an unroll is not stored"
        return self._gather(np.arange(length + 1)[:, None] + offsets, columns[None], columns)

    def _gather(self, time: np.ndarray, column: np.ndarray, beginnings: np.ndarray) -> Batch:
        """Rows `time` of `column`, which broadcast to [rows, B], after the state of `beginnings` [B]."""
        # By one flat index: NumPy copies whole rows for it, and element by element for two.
        index = time * self.columns + column

        def take(array: np.ndarray) -> np.ndarray:
            taken: np.ndarray = _flat(array).take(index, axis=0)
            return taken

        flags = take(self.flags)
        return Batch(
            observation=tuple(take(leaf) for leaf in self.observation),
            reward=take(self.reward),
            first=(flags & pb.FIRST) != 0,
            terminated=(flags & pb.TERMINATED) != 0,
            truncated=(flags & pb.TRUNCATED) != 0,
            record={name: take(array) for name, array in self.record.items()},
            version=take(self.version),
            initial_state={name: array[beginnings] for name, array in self.state.items()},
            weight=np.ones(index.shape[1], np.float32),
        )


class UnrollWriter:
    """Writes each environment's steps into its unroll, and finished unrolls into the queue.

    Unrolls have T transitions and so T+1 rows; they cross episodes, and an environment's next
    unroll begins with the last row of the one before. `_lock` guards every field, and the columns
    that are being written. Before it takes the lock, `append` reads its own slots' elements of
    `_next_row`, which nobody else writes then: a slot has one step in flight, and `drop` comes after its
    answer.
    """

    def __init__(self, pool: UnrollPool, queue: UnrollQueue, num_slots: int) -> None:
        self._next_serial = 0
        self._pool = pool
        self._queue = queue
        # Where the slots' next rows go: one number of the pool's rows, so that one comparison says of a
        # batch whether any unroll begins or ends in it. Those without a column have one past all rows.
        self._last_row = pool.length * pool.columns
        self._nowhere = self._last_row + pool.columns
        self._next_row = np.full(num_slots, self._nowhere, np.int64)
        self._finished = 0
        self._dropped = dict.fromkeys(LeaseEnd, 0)
        self._dropped_steps = 0
        self._lock = threading.Lock()

    def number_from(self, serial: int) -> None:
        """Give the next finished unroll this number: those before it are a saved replay's."""
        with self._lock:
            self._next_serial = serial

    def wait_for_room(self) -> bool:
        """Block while the queue is full. False if it was closed."""
        return self._queue.wait_for_room()

    def has_room(self) -> bool:
        """Whether the queue is open and not full. Never blocks."""
        return self._queue.has_room()

    def append(self, steps: Steps) -> None:
        """Store answered steps. Never blocks: `wait_for_room` before."""
        slots = steps.slots
        rows = self._next_row[slots]
        edges = rows >= self._last_row
        if np.count_nonzero(edges):
            self._append_at_edges(slots, rows, np.flatnonzero(edges), steps)
        else:
            with self._lock:
                self._write(slots, rows, steps)

    def _append_at_edges(
        self, slots: np.ndarray, rows: np.ndarray, edges: np.ndarray, steps: Steps
    ) -> None:
        """Where rows of the positions `edges` will each be row 0 of an unroll, and maybe the last of the
        one before."""
        # Fetched from the device before the lock is taken, for which the event loop may wait.
        memory = steps.state_before(edges) if self._pool.state else {}
        with self._lock:
            self._begin_missing(rows)
            self._write(slots, rows, steps)
            done = np.flatnonzero(rows >= self._last_row)
            if done.size:
                self._finish(slots[done], rows[done] - self._last_row)
            begun = self._next_row[slots[edges]] % self._pool.columns
            for name, value in memory.items():
                self._pool.state[name][begun] = value

    def drop(self, slots: np.ndarray, reason: LeaseEnd) -> None:
        """Forget the unfinished unrolls of these slots: their lease is over."""
        with self._lock:
            open_slots = slots[self._next_row[slots] < self._nowhere]
            time, column = np.divmod(self._next_row[open_slots], self._pool.columns)
            self._pool.release(column)
            self._dropped[reason] += len(open_slots)
            # Transitions: row 0 only begins the first, or was the last row of the unroll before.
            self._dropped_steps += int((time - 1).sum())
            self._next_row[open_slots] = self._nowhere

    def statistics(self) -> Mapping[str, float]:
        with self._lock:
            return {
                "finished": self._finished,
                "dropped": sum(self._dropped.values()),
                **{f"dropped_{reason}": count for reason, count in self._dropped.items()},
                "dropped_steps": self._dropped_steps,
                "unfinished": int((self._next_row < self._nowhere).sum()),
            }

    def _write(self, slots: np.ndarray, rows: np.ndarray, steps: Steps) -> None:
        self._pool.write(rows, steps)
        self._next_row[slots] = rows + self._pool.columns

    def _begin_missing(self, rows: np.ndarray) -> None:
        """Put row 0 of a new column in the place of each row that is nowhere."""
        missing = np.flatnonzero(rows == self._nowhere)
        if missing.size:
            begun = self._pool.acquire(len(missing))
            self._pool.continues[begun] = -1
            rows[missing] = begun

    def _finish(self, slots: np.ndarray, finished: np.ndarray) -> None:
        """Hand over the columns that are full, and begin the next with their last rows."""
        begun = self._pool.acquire(len(slots))
        pool = self._pool
        for stored in (*pool.observation, pool.reward, pool.flags, pool.version, *pool.record.values()):
            stored[0, begun] = stored[pool.length, finished]
        serials = np.arange(self._next_serial, self._next_serial + len(slots))
        self._next_serial += len(slots)
        pool.serial[finished] = pool.continues[begun] = serials
        self._next_row[slots] = begun + pool.columns
        self._finished += len(slots)
        self._queue.put(finished)
