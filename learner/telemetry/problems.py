"""The last warnings and errors of the log, for whoever has not watched it."""

import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from learner.telemetry.logs import printable
from protos.words import text_of

MAX_TEXT = 500
"""Most characters of a message that are kept: clients' words are in some."""

MAX_KINDS = 20
"""Messages that are kept of each level, so that clients who cause warnings push out no error."""


class Problem(NamedTuple):
    """What the log has said once, or several times but for the numbers in it."""

    level: str
    """WARNING or ERROR"""
    text: str
    """the last time's, in one line of printable characters"""
    times: int
    first: float
    """seconds since 1970"""
    last: float
    """seconds since 1970"""


class Problems(logging.Handler):
    """Keeps the newest problems. Any thread may log: `_kept_lock` guards what is kept."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        super().__init__(logging.WARNING)
        self._clock = clock
        self._kept: dict[str, OrderedDict[str, Problem]] = {
            level: OrderedDict() for level in ("WARNING", "ERROR")
        }
        self._kept_lock = threading.Lock()

    @contextmanager
    def attached(self, logger: logging.Logger) -> Iterator[None]:
        """Hear what `logger` and those below it say, for as long as the context lasts."""
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = _text(record)
        except Exception:  # noqa: BLE001 - a message that cannot be formatted; logging says so its own way
            self.handleError(record)
            return
        level = "WARNING" if record.levelno < logging.ERROR else "ERROR"
        # A flood of one kind differs in ports and counts.
        kind = re.sub(r"\d+", "#", text)
        now = self._clock()
        with self._kept_lock:
            kept = self._kept[level]
            before = kept.pop(kind, None)
            times, first = (1, now) if before is None else (before.times + 1, before.first)
            kept[kind] = Problem(level, text, times, first, now)
            if len(kept) > MAX_KINDS:
                kept.popitem(last=False)

    def recent(self) -> list[Problem]:
        """Those that are kept, the latest first."""
        with self._kept_lock:
            problems = [problem for kept in self._kept.values() for problem in kept.values()]
        return sorted(problems, key=lambda problem: -problem.last)


def _text(record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        text = f"{text}: {type(error).__name__}: {text_of(error)}"
    line = printable(text[: 2 * MAX_TEXT])
    return line if len(line) <= MAX_TEXT else f"{line[:MAX_TEXT]}..."
