"""What a learner has recorded, in a file that outlives it: rows that were answered, unrolls that were
trained on, leases that ended."""

import os
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.faults.world import IDENTITY

STEPS, UPDATE, DROP = 1, 2, 3
"""Kinds of events: answered rows; one training batch; slots whose leases are over."""

ROW = np.dtype(
    [
        *((name, IDENTITY[name]) for name in IDENTITY.names or ()),
        ("slot", "<i4"),
        ("reward", "<f4"),
        ("flags", "u1"),
        ("action", "u1"),
        ("version", "<u4"),
    ]
)
"""A row of the numbered world as the learner has it. In a training batch its slot is -1, and its flags
have no LEASE_START."""

SLOT = np.dtype("<i4")

_HEADER = struct.Struct("<Bdqqqq")


class Event(NamedTuple):
    """One entry of a ledger."""

    kind: int
    time: float
    """seconds since the epoch"""
    payload: np.ndarray
    """ROW [n] of STEPS; ROW [T+1, B] of an UPDATE; SLOT [n] of a DROP"""
    finished: int = 0
    dropped: int = 0
    dropped_steps: int = 0
    """what the learner's unroll writer reports after a DROP, since its start"""


class LedgerWriter:
    """Appends events to a new file. What `write` has returned from survives the process's death by
    SIGKILL: it is the kernel's by then. `_lock` keeps events whole."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._lock = threading.Lock()

    def steps(self, rows: np.ndarray) -> None:
        """ROW [n] were answered."""
        self._write(STEPS, rows, 1)

    def update(self, rows: np.ndarray) -> None:
        """ROW [T+1, B] are about to be trained on."""
        self._write(UPDATE, rows, rows.shape[1])

    def drop(self, slots: np.ndarray, statistics: Mapping[str, float]) -> None:
        """The leases of these slots are over, and this is what the unroll writer now reports."""
        counts = (int(statistics[name]) for name in ("finished", "dropped", "dropped_steps"))
        self._write(DROP, slots.astype(SLOT), *counts)

    def close(self) -> None:
        os.close(self._file)

    def _write(self, kind: int, payload: np.ndarray, a: int, b: int = 0, c: int = 0) -> None:
        header = _HEADER.pack(kind, time.time(), payload.nbytes, a, b, c)
        with self._lock:
            left = memoryview(header + payload.tobytes())
            while left:
                left = left[os.write(self._file, left) :]


class LedgerReader:
    """Reads what has been written so far, and goes on where it stopped.

    An event that the writer's death has torn is not read: nothing has followed from it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> Iterator[Event]:
        """The events since the last reading."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            while len(header := file.read(_HEADER.size)) == _HEADER.size:
                kind, moment, size, a, b, c = _HEADER.unpack(header)
                data = file.read(size)
                if len(data) < size:
                    return
                self._offset += _HEADER.size + size
                yield _event(kind, moment, data, a, b, c)


def _event(kind: int, moment: float, data: bytes, a: int, b: int, c: int) -> Event:
    if kind == DROP:
        return Event(kind, moment, np.frombuffer(data, SLOT), a, b, c)
    rows = np.frombuffer(data, ROW)
    return Event(kind, moment, rows if kind == STEPS else rows.reshape(-1, a))
