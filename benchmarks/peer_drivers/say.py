"""How a driver speaks to the benchmark: one line of JSON at a time on standard output."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peer_drivers import records
from benchmarks.peer_drivers.settings import MARK

INTERVAL_SECONDS = 0.2
"""Readings that come sooner after the last one are left out."""


def say(**values: Any) -> None:
    """Write one line in one piece, whatever else this and other processes print."""
    os.write(1, f"\n{MARK}{json.dumps(values)}\n".encode())


class Readings:
    """Says how far learning has come, and at the same moment how far the environments; not too often.

    Args:
        folder: of the environments' records.
    """

    def __init__(
        self,
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
        write: Callable[..., None] = say,
    ) -> None:
        self._folder, self._clock, self._write = folder, clock, write
        self._last: tuple[float, float] | None = None

    def add(self, trained: float, updates: int, policy_lag: float | None) -> None:
        """Agent steps trained on, each counted once however many epochs, and updates made so far."""
        now = self._clock()
        if self._last is not None and (
            now - self._last[0] < INTERVAL_SECONDS or trained == self._last[1]
        ):
            return
        self._last = (now, trained)
        sampled = records.read(self._folder).steps
        self._write(time=now, sampled=sampled, trained=trained, updates=updates, policy_lag=policy_lag)
