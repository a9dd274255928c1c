"""Signals that end an actor, as a wish that its loop meets."""

import itertools
import logging
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType

logger = logging.getLogger(__name__)

LIMIT_SECONDS = 15.0
"""How long the step at hand, and all that closes the actor, may take. Supervisors kill after 20 s (as
`k8s/` has it) or 30 s, and say nothing of where it hung."""

LOOK_SECONDS = 0.1
"""How often it is looked at most who has the signals: asking takes as long as many a step."""


def end_process() -> None:
    """At once, whatever hangs."""
    os._exit(1)


class StopSignals:
    """SIGTERM and SIGINT as a wish to stop after the step at hand; a second one ends the process.

    A context manager; `is_set` tells, and the callbacks are called once, in the signal's handler, or by
    who calls `wish`. The thread that enters it is the main thread; any may ask and wish.

    Args:
        limit_seconds: how long after the signal or the wish the context may last: an environment may
            hang, and would not hear of it.
        give_up: ends the process after that time; called by a thread of its own, after the log has said
            why.
    """

    def __init__(
        self,
        limit_seconds: float = LIMIT_SECONDS,
        give_up: Callable[[], None] = end_process,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit_seconds = limit_seconds
        self._give_up = give_up
        self._clock = clock
        self._look_at = -math.inf
        self._event = threading.Event()
        # Atomic: threads and a signal's handler may wish at the same time, and a handler cannot wait for
        # a lock.
        self._wishes = itertools.count()
        self._callbacks: list[Callable[[], None]] = []
        self._former: dict[int, object] = {}
        self._handler = self._on_signal  # One object, to be known again.
        self._timer: threading.Timer | None = None
        self.exit_status = 0
        self.name = ""
        """of the signal, such as SIGTERM; empty while none has come"""

    def __enter__(self) -> "StopSignals":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._former[number] = signal.signal(number, self._handler)
        # What an environment forks (a multiprocessing.Process) would inherit the wish to stop, which
        # nobody meets there; whoever ends it by a signal waits for its end.
        os.register_at_fork(after_in_child=self._restore)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
        if self._timer is not None:
            self._timer.cancel()

    def _restore(self) -> None:
        while self._former:
            signal.signal(*self._former.popitem())  # type: ignore[arg-type]  # its type is not public

    def is_set(self) -> bool:
        """Whether a signal came, or somebody wished. Takes the signals back where an environment has set
        its own handlers, which only the main thread can: nobody else would close the session. (Where
        other threads step the environments, these can set none.)"""
        if self._clock() >= self._look_at and threading.current_thread() is threading.main_thread():
            self._take_back()
        return self._event.is_set()

    def _take_back(self) -> None:
        self._look_at = self._clock() + LOOK_SECONDS
        for number in self._former:
            if signal.getsignal(number) is not self._handler and not self._event.is_set():
                signal.signal(number, self._handler)

    def wish(self) -> None:
        """As a signal does, from any thread."""
        if next(self._wishes) == 0:
            self._stop()

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call `callback` when a signal comes, or now if one has come."""
        self._callbacks.append(callback)
        if self.is_set():
            callback()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        for other in self._former:
            signal.signal(other, signal.SIG_DFL)
        self.name = signal.Signals(number).name
        self.exit_status = 130 if number == signal.SIGINT else 0
        self.wish()

    def _stop(self) -> None:
        self._event.set()
        for callback in self._callbacks:
            callback()
        timer = threading.Timer(self._limit_seconds, self._overrun)
        # Daemon: the limit must not hold up what ends before it.
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError as error:
            # Threads that the system does not start may be the failure for which all is to end.
            logger.warning("nothing limits the time that ending takes: %s", error)
        else:
            self._timer = timer

    def _overrun(self) -> None:
        logger.error(
            "the actor did not end within %g s of the %s: its process ends now, and the learner "
            "waits for it as long as its lease lasts. Where it is:\n%s",
            self._limit_seconds,
            "signal" if self.name else "failure",
            "\n".join(_stacks()),
        )
        self._give_up()


def _stacks() -> Iterator[str]:
    """Where each thread is, but for this one and those that hold nobody up."""
    frames = sys._current_frames()
    for thread in threading.enumerate():
        if not thread.daemon and (frame := frames.get(thread.ident or 0)) is not None:
            yield f"{thread.name}:\n{''.join(traceback.format_stack(frame))}"
