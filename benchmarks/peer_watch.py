"""When a run's window begins and ends, and what its readings say: no processes, no clock."""

from typing import NamedTuple

from benchmarks.peer_drivers.records import EPISODES, Totals, percentile

TOLERANCE = 0.05
"""How far trained / sampled may be from 1."""


class Look(NamedTuple):
    """A run at one moment."""

    time: float
    """of `time.monotonic`"""
    totals: Totals
    """what the environments have recorded"""
    trained: float
    """agent steps trained on, each counted once"""
    updates: int
    policy_lag: float | None


class Limits(NamedTuple):
    """How long a run is watched."""

    warm_up_seconds: float
    """from the first update to the window"""
    window_seconds: float
    threshold: float | None = None
    """mean return of 100 episodes that the run goes on to"""
    threshold_steps: int = 0
    """agent steps after which it has failed to reach it"""


class Threshold(NamedTuple):
    """Whether and when a run reached the threshold; seconds from its first step."""

    reached: bool
    seconds: float
    steps: int


class Watch:
    """Follows one run.

    `see` every look; `window` is open between `opened` and `closed`, both at readings, so that a rate is
    that of whole updates; `done` when nothing is left to wait for.
    """

    def __init__(self, limits: Limits, started: float) -> None:
        self._limits, self._started = limits, started
        self._first_step: float | None = None
        self._lags: list[float] = []
        self.first_update: float | None = None
        self.opened: Look | None = None
        self.closed: Look | None = None
        self.threshold: Threshold | None = None

    @property
    def done(self) -> bool:
        waits = self._limits.threshold is not None and self.threshold is None
        return self.closed is not None and not waits

    @property
    def stepping(self) -> bool:
        """Whether the environments have made a step."""
        return self._first_step is not None

    @property
    def cold_start_seconds(self) -> float | None:
        """From the start of the process to the first update."""
        return None if self.first_update is None else self.first_update - self._started

    @property
    def policy_lag(self) -> float | None:
        """Mean of the readings in the window."""
        return sum(self._lags) / len(self._lags) if self._lags else None

    def count(self, time: float, totals: Totals) -> None:
        """Look at the environments alone, between two readings."""
        if totals.steps and self._first_step is None:
            self._first_step = time
        target = self._limits.threshold
        if target is None or self.threshold is not None or self._first_step is None:
            return
        known = totals.episodes >= EPISODES and totals.mean_return is not None
        reached = known and (totals.mean_return or 0.0) >= target
        if reached or totals.steps >= self._limits.threshold_steps:
            self.threshold = Threshold(reached, time - self._first_step, totals.steps)

    def see(self, look: Look) -> None:
        """A reading of the driver."""
        self.count(look.time, look.totals)
        if look.trained <= 0 or self.closed is not None:
            return
        if self.first_update is None:
            self.first_update = look.time
        if self.opened is None:
            if look.time >= self.first_update + self._limits.warm_up_seconds:
                self.opened = look
            return
        if look.policy_lag is not None:
            self._lags.append(look.policy_lag)
        if look.time >= self.opened.time + self._limits.window_seconds:
            self.closed = look


class Rates(NamedTuple):
    """What a run did in its window."""

    window_seconds: float
    steps_per_second: float
    """agent steps that the environments made"""
    trained_per_second: float
    trained_ratio: float
    """agent steps trained on, for each that was sampled"""
    trained_ratio_resolution: float
    """how far the ratio of so short a window may be off, because updates are on whole batches"""
    wait_p50_ms: float | None
    """between the end of an environment's step and the beginning of its next one"""
    wait_p99_ms: float | None
    policy_lag: float | None
    """updates between acting and training"""
    mean_return: float | None
    """of the last 100 episodes at the window's end"""

    @property
    def valid(self) -> bool:
        """Whether the run has trained on what it sampled."""
        return abs(self.trained_ratio - 1) <= TOLERANCE + self.trained_ratio_resolution


def rates(watch: Watch, steps_in_flight: int) -> Rates:
    """The figures of a closed window.

    Args:
        watch: its `opened` and `closed` are there.
        steps_in_flight: agent steps that may be sampled and not trained on yet.
    """
    opened, closed = watch.opened, watch.closed
    assert opened is not None
    assert closed is not None
    seconds = closed.time - opened.time
    sampled = closed.totals.steps - opened.totals.steps
    trained = closed.trained - opened.trained
    waits = tuple(
        after - before for before, after in zip(opened.totals.waits, closed.totals.waits, strict=True)
    )
    return Rates(
        window_seconds=seconds,
        steps_per_second=sampled / seconds,
        trained_per_second=trained / seconds,
        trained_ratio=trained / sampled if sampled else 0.0,
        trained_ratio_resolution=steps_in_flight / sampled if sampled else 0.0,
        wait_p50_ms=_milliseconds(percentile(waits, 0.5)),
        wait_p99_ms=_milliseconds(percentile(waits, 0.99)),
        policy_lag=watch.policy_lag,
        mean_return=closed.totals.mean_return,
    )


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds
