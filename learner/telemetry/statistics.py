"""One registry that every queue, thread and stream reports to, and the small meters they use.

Meters have one owner that writes and one reader that asks for "since the last reading". They take
no lock: the owner publishes one tuple, whose assignment is atomic, so the hot path costs well under
a microsecond.
"""

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Protocol

Clock = Callable[[], float]
"""Seconds that never run backwards, from an arbitrary start."""


class Reporting(Protocol):
    """A part with numbers to report."""

    def statistics(self) -> Mapping[str, float]: ...


class Registry:
    """Every part's numbers under one roof. `_lock` guards the parts."""

    def __init__(self) -> None:
        self._parts: dict[str, Callable[[], Mapping[str, float]]] = {}
        self._lock = threading.Lock()

    def register(self, name: str, statistics: Callable[[], Mapping[str, float]]) -> None:
        """Let `statistics` report under `name`; it is called by the reader's thread.

        Raises:
            ValueError: another part has the name.
        """
        with self._lock:
            if name in self._parts:
                raise ValueError(f"two parts report as {name!r}: their numbers would mix")
            self._parts[name] = statistics

    def snapshot(self) -> dict[str, float]:
        """All numbers of now, as "name/key"."""
        with self._lock:
            parts = list(self._parts.items())
        return {
            f"{name}/{key}": float(value)
            for name, statistics in parts
            for key, value in statistics().items()
        }


class BusyClock:
    """How much of its time a thread works, rather than waits: `with clock.busy(): work()`."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        # Seconds of finished work, and since when the present work runs: written by the owner alone.
        self._work: tuple[float, float | None] = (0.0, None)
        self._read_at = clock()
        self._read_work = 0.0

    def busy(self) -> "BusyClock":
        """A context of work. It does not nest."""
        return self

    def __enter__(self) -> None:
        self._work = (self._work[0], self._clock())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        done, since = self._work
        if since is not None:
            self._work = (done + self._clock() - since, None)

    def working_seconds(self) -> float:
        """How long the present piece of work has been running; 0 between two. Any thread may ask."""
        since = self._work[1]
        return 0.0 if since is None else self._clock() - since

    def busy_seconds(self) -> float:
        """Seconds of work since the start. Never falls from call to call. Any thread may ask."""
        # The time first: work that ends between the two readings must not be counted beyond its end.
        now = self._clock()
        done, since = self._work
        return done if since is None else done + max(now - since, 0.0)

    def busy_fraction(self) -> float:
        """Part of the time since the last call, or since the start, that was work: 0 to 1."""
        done, since = self._work
        now = self._clock()
        work = done if since is None else done + now - since
        elapsed = now - self._read_at
        # Work that ended between the two readings above is counted up to `now`, a little too much;
        # the next reading makes up for it, and the limits keep both sensible.
        fraction = (work - self._read_work) / elapsed if elapsed > 0 else 0.0
        self._read_at, self._read_work = now, work
        return min(max(fraction, 0.0), 1.0)


class RunningMean:
    """The mean of what was added since the last reading."""

    def __init__(self) -> None:
        self._sums = (0.0, 0)
        self._read = (0.0, 0)

    def add(self, total: float, count: int = 1) -> None:
        """Add `count` values whose sum is `total`."""
        self._sums = (self._sums[0] + total, self._sums[1] + count)

    def mean(self) -> float | None:
        """The mean since the last call; None if nothing was added."""
        total, count = self._sums
        last_total, last_count = self._read
        self._read = (total, count)
        return (total - last_total) / (count - last_count) if count > last_count else None


class Rate:
    """Turns a counter that only grows into how fast it grows."""

    def __init__(self, start: float = 0.0, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._last = (start, clock())

    def per_second(self, count: float) -> float:
        """Growth a second since the last call, or since the start; 0 if no time has passed."""
        last_count, last_time = self._last
        now = self._clock()
        self._last = (count, now)
        return (count - last_count) / (now - last_time) if now > last_time else 0.0


class Ratio:
    """Turns two counters that only grow, as rows and batches, into rows a batch of late."""

    def __init__(self) -> None:
        self._last = (0.0, 0.0)

    def of(self, numerator: float, denominator: float) -> float:
        """Growth of the one over growth of the other since the last call; 0 if neither grew."""
        last_numerator, last_denominator = self._last
        self._last = (numerator, denominator)
        grown = denominator - last_denominator
        return (numerator - last_numerator) / grown if grown > 0 else 0.0
