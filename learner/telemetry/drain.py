"""The one bound on how a run ends: whatever hangs, the process is gone after so many seconds."""

import logging
import threading
from collections.abc import Callable

from learner.telemetry.watchdog import stacks

logger = logging.getLogger(__name__)


class Drain:
    """Counts the time from the signal or failure that ends a run to its end.

    What it bounds is all that may take long then: the update that runs, the last checkpoint, the ends of
    streams, threads and actors. `_lock` guards the timer.

    Args:
        limit_seconds: more than this is too long.
        give_up: ends the process; called by a thread of its own, after the log has said why.
    """

    def __init__(self, limit_seconds: float, give_up: Callable[[], None]) -> None:
        self._limit_seconds = limit_seconds
        self._give_up = give_up
        self._timer: threading.Timer | None = None
        self._closed = False
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Count from here. Any thread may call it; idempotent."""
        with self._lock:
            if self._timer is None and not self._closed:
                self._timer = threading.Timer(self._limit_seconds, self._overrun)
                # Daemon: the limit must not hold up what ends before it.
                self._timer.daemon = True
                self._timer.start()

    def close(self) -> None:
        """The run has ended. Idempotent."""
        with self._lock:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()

    def _overrun(self) -> None:
        logger.error(
            "the run did not end within %g s (--drain-seconds): the process ends now, and a restart "
            "goes on from the last checkpoint. Where each thread is: %s",
            self._limit_seconds,
            stacks(),
        )
        self._give_up()
