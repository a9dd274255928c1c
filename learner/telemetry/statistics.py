"""One registry that every queue, thread and stream reports to, and the small meters they use.

Meters have one owner that writes. What says "since the last reading" has one reader too; what counts
since the start (`Histogram`, `BusyClock.busy_seconds`, every part's `statistics`) has any number. They
take no lock: the owner publishes one tuple, whose assignment is atomic, so the hot path costs about a
microsecond.
"""

import math
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, TypeVar

Read = TypeVar("Read")

Clock = Callable[[], float]
"""Seconds that never run backwards, from an arbitrary start."""


class Reporting(Protocol):
    """A part with numbers to report."""

    def statistics(self) -> Mapping[str, float]: ...


class Spread(NamedTuple):
    """How values are spread: what a `Histogram` says at one moment."""

    bounds: tuple[float, ...]
    """upper limits of the buckets, inclusive, ascending; one more bucket has no limit"""
    counts: tuple[int, ...]
    """values in each bucket, one more than there are bounds"""
    total: float
    """sum of the values"""


class Registry:
    """Every part's numbers under one roof. `_lock` guards the parts."""

    def __init__(self) -> None:
        self._parts: dict[str, Callable[[], Mapping[str, float]]] = {}
        self._spreads: dict[str, Callable[[], Mapping[str, Spread]]] = {}
        self._lock = threading.Lock()

    def register(self, name: str, statistics: Callable[[], Mapping[str, float]]) -> None:
        """Let `statistics` report under `name`; it is called by the reader's thread.

        Raises:
            ValueError: another part has the name.
        """
        self._add(self._parts, name, statistics)

    def snapshot(self) -> dict[str, float]:
        """All numbers of now, as "name/key". Any thread may ask."""
        with self._lock:
            parts = list(self._parts.items())
        return {
            f"{name}/{key}": float(value)
            for name, statistics in parts
            for key, value in statistics().items()
        }

    def register_spreads(self, name: str, spreads: Callable[[], Mapping[str, Spread]]) -> None:
        """Let `spreads`, the readings of a part's histograms, report under `name`.

        Raises:
            ValueError: another part has the name.
        """
        self._add(self._spreads, name, spreads)

    def spreads(self) -> dict[str, Spread]:
        """All histograms of now, as "name/key". Any thread may ask."""
        with self._lock:
            parts = list(self._spreads.items())
        return {f"{name}/{key}": spread for name, spreads in parts for key, spread in spreads().items()}

    def _add(self, parts: dict[str, Read], name: str, read: Read) -> None:
        with self._lock:
            if name in parts:
                raise ValueError(f"two parts report as {name!r}: their numbers would mix")
            parts[name] = read


class BusyClock:
    """How much of its time a thread works, rather than waits: `with clock.busy(): work()`."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        # Seconds of finished work, and since when the present work runs: written by the owner alone.
        self._work: tuple[float, float | None] = (0.0, None)
        self.last_seconds = 0.0
        """of the last piece of work that has ended"""
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
            self.last_seconds = self._clock() - since
            self._work = (done + self.last_seconds, None)

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


class ThreadCpu:
    """CPU seconds of the thread that notes them. Any thread may read `seconds`.

    Args:
        interval_seconds: how old the last note must be for another: to ask is a system call.
        clock: seconds that never run backwards.
    """

    def __init__(self, interval_seconds: float, clock: Clock = time.monotonic) -> None:
        self.seconds = 0.0
        """as last noted"""
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._note_at = -math.inf

    def note(self) -> None:
        """After some work, by the thread that did it."""
        now = self._clock()
        if now >= self._note_at:
            self.seconds, self._note_at = time.thread_time(), now + self._interval_seconds


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


class Histogram:
    """How values are spread since the start. One thread adds at a time; any may read.

    Args:
        bounds: upper limits of the buckets, inclusive, ascending.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        """Count a finite value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def spread(self) -> Spread:
        """What was added so far; the sum may be one value behind the counts."""
        return Spread(self._bounds, tuple(self._counts), self._total)


class Durations(Histogram):
    """Seconds, from a tenth of a millisecond to ten seconds: `with durations.measured(): work()`.

    What fails is not counted. It does not nest.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        super().__init__(
            [digit * 10.0**power for power in range(-4, 1) for digit in (1, 2.5, 5)] + [10.0]
        )
        self._clock = clock
        self._begun = 0.0

    def measured(self) -> "Durations":
        """A context of work."""
        return self

    def __enter__(self) -> None:
        self._begun = self._clock()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.add(self._clock() - self._begun)


def merged(histograms: Sequence[Histogram]) -> Spread:
    """Several threads' histograms of the same bounds as one."""
    spreads = [histogram.spread() for histogram in histograms]
    counts = tuple(sum(counts) for counts in zip(*(spread.counts for spread in spreads), strict=True))
    return Spread(spreads[0].bounds, counts, sum(spread.total for spread in spreads))


class Stopwatch:
    """How long a condition has held since the start. Its owner's lock guards it."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._seconds = 0.0
        self._since: float | None = None

    def note(self, holds: bool) -> None:
        """Take note of whether the condition holds from now on."""
        if holds and self._since is None:
            self._since = self._clock()
        elif not holds and self._since is not None:
            self._seconds += self._clock() - self._since
            self._since = None

    def seconds(self) -> float:
        return self._seconds if self._since is None else self._seconds + self._clock() - self._since
