"""Lines of the log that others can cause: a flood of them must not fill the disk."""

import logging
import time
from collections.abc import Hashable
from dataclasses import dataclass

from learner.telemetry.statistics import Clock

LIMIT = 20
"""Lines of a kind in an interval; the others are counted."""

INTERVAL_SECONDS = 60.0


@dataclass
class _Kind:
    """Lines of one kind in the present interval."""

    began: float
    said: int = 0
    left_out: int = 0


class SparingLog:
    """Says the first lines of each kind in an interval, and how many more there were.

    The count is said with the next line of its kind after the interval. By one thread. There must be few
    kinds: nothing that a client chooses.
    """

    def __init__(self, logger: logging.Logger, clock: Clock = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._kinds: dict[Hashable, _Kind] = {}

    def log(self, level: int, kind: Hashable, message: str, *arguments: object) -> None:
        """Say this, unless too much of its kind was said."""
        now = self._clock()
        state = self._kinds.setdefault(kind, _Kind(now))
        if now - state.began >= INTERVAL_SECONDS:
            if state.left_out:
                seconds = now - state.began
                said = "%d more lines (%s) were left out in %.0f s"
                self._logger.log(level, said, state.left_out, kind, seconds)
            state = self._kinds[kind] = _Kind(now)
        if state.said < LIMIT:
            state.said += 1
            self._logger.log(level, message, *arguments)
            return
        if not state.left_out:
            said = "more lines like the last one (%s) come: they are counted for now"
            self._logger.log(level, said, kind)
        state.left_out += 1
