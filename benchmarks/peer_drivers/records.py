"""What the environments themselves say of a run: steps, returns, and how long they wait for actions.

Each world maps a file of its own into memory, which the benchmark reads while the run goes on. So every
system is counted in the same way, and none by its own account. Numbers of 8 bytes are written whole.
"""

import itertools
import math
import mmap
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

FOLDER_VARIABLE = "PEERS_RECORDS"
"""Names the folder of the files; worlds are made deep inside other systems' processes."""

BINS = 400
LOWEST_SECONDS = 1e-6
GROWTH = 1.05
"""Bin k holds waits of LOWEST_SECONDS * GROWTH**k to GROWTH times as much; the last ends after 300 s."""

RING = 128
"""Episodes that are remembered, of which the last `EPISODES` of all worlds together are used."""

EPISODES = 100

_COUNTERS = 2 + BINS
_BYTES = 8 * (_COUNTERS + 2 * RING)
_number = itertools.count()


class Totals(NamedTuple):
    """All worlds of a run together."""

    steps: int
    """agent steps: never multiplied by a frame skip, and none for the row that begins an episode"""
    episodes: int
    waits: tuple[int, ...]
    """agent steps by the bin of the wait for their action"""
    mean_return: float | None
    """of the last 100 episodes, or of as many as there are"""


class Record:
    """One world's file."""

    def __init__(self, where: Path) -> None:
        path = where / f"{os.getpid()}-{next(_number)}.world"
        with path.open("w+b") as file:
            file.truncate(_BYTES)
            self._map = mmap.mmap(file.fileno(), _BYTES)
        view = memoryview(self._map)
        self._counters = view[: 8 * _COUNTERS].cast("q")
        self._ring = view[8 * _COUNTERS :].cast("d")

    def stepped(self, environments: int, wait_seconds: float) -> None:
        """So many environments made a step, whose actions they had waited for."""
        self._counters[0] += environments
        self._counters[2 + bin_of(wait_seconds)] += environments

    def finished(self, when: float, episode_return: float) -> None:
        """An episode ended, at a time of `time.monotonic`, which all processes share."""
        place = 2 * (self._counters[1] % RING)
        self._ring[place], self._ring[place + 1] = when, episode_return
        self._counters[1] += 1


def folder() -> Path:
    """Where this process's run keeps its records.

    Raises:
        KeyError: it is not one of the benchmark's.
    """
    return Path(os.environ[FOLDER_VARIABLE])


def bin_of(seconds: float) -> int:
    """The bin of a wait."""
    if seconds <= LOWEST_SECONDS:
        return 0
    return min(int(math.log(seconds / LOWEST_SECONDS) / math.log(GROWTH)), BINS - 1)


def read(where: Path) -> Totals:
    """What all worlds in the folder have recorded so far."""
    counters = np.zeros(_COUNTERS, np.int64)
    rings = []
    for path in where.glob("*.world"):
        data = path.read_bytes()
        if len(data) < _BYTES:  # it is being made
            continue
        mine = np.frombuffer(data, np.int64, _COUNTERS)
        ring = np.frombuffer(data, np.float64, offset=8 * _COUNTERS).reshape(RING, 2)
        rings.append(ring[: min(int(mine[1]), RING)])
        counters += mine
    ends = np.concatenate(rings) if rings else np.zeros((0, 2))
    last = ends[np.argsort(ends[:, 0], kind="stable")][-EPISODES:, 1]
    return Totals(
        steps=int(counters[0]),
        episodes=int(counters[1]),
        waits=tuple(counters[2:].tolist()),
        mean_return=float(last.mean()) if len(last) else None,
    )


def percentile(waits: tuple[int, ...], part: float) -> float | None:
    """Seconds below which this part of the waits is, within 5 %; None of nothing."""
    total, seen = sum(waits), 0
    for index, count in enumerate(waits):
        seen += count
        if total and seen >= part * total:
            return float(LOWEST_SECONDS * GROWTH ** (index + 0.5))
    return None
