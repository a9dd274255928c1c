"""What ends a client's waiting before its time: `interrupt`, and deadlines."""

import math
import queue
import threading
import time
from collections.abc import Callable

from protos.errors import SeedbedError


class Interrupted(SeedbedError):
    """`interrupt` ended the waiting."""


class Overdue(Exception):
    """The deadline has passed."""


class Waiting:
    """The waiting of one thread, for a call or for time to pass.

    A call is woken by `wake`: its completion queue knows no deadlines, so that a thread of this object
    waits for them in its place. That thread looks at the deadline no more often than one can pass, and
    for a message no lock is taken.

    `wake` may come late, and for nothing: who is woken asks `check`.
    """

    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None
        """Wakes the call that is waited for; set before the waiting begins."""
        self._interrupted = False
        # Its `put` may be called in a signal's handler, whatever the handler has interrupted.
        self._interruptions: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._deadline = math.inf
        self._looks_at = -math.inf
        self._going_on: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def interrupt(self) -> None:
        """Make all waiting raise `Interrupted`, now and later. For signal handlers and other threads."""
        self._interrupted = True
        self._interruptions.put(None)
        self.wake()

    def begin(self, seconds: float) -> None:
        """Begin to wait for the call, for so long."""
        self._deadline = deadline = time.monotonic() + seconds
        if deadline < self._looks_at:
            self._going_on.put(True)
        elif self._thread is None:
            thread = threading.Thread(target=self._watch, name="client", daemon=True)
            thread.start()
            # Not before: Ctrl-C may keep it from starting.
            self._thread = thread

    def check(self) -> None:
        """Whether to wait on.

        Raises:
            Interrupted: `interrupt` was called.
            Overdue: the time has passed.
        """
        self.check_interrupted()
        self.check_deadline()

    def check_interrupted(self) -> None:
        if self._interrupted:
            raise Interrupted("interrupted")

    def check_deadline(self) -> None:
        if time.monotonic() >= self._deadline:
            raise Overdue

    def sleep(self, seconds: float) -> None:
        """Let time pass.

        Raises:
            Interrupted: `interrupt` was called.
        """
        self.check_interrupted()
        try:
            self._interruptions.get(timeout=seconds)
        except queue.Empty:
            return
        self.check_interrupted()

    def end(self) -> None:
        """End the thread. Idempotent."""
        if self._thread is not None:
            self._going_on.put(False)
            self._thread.join()
            self._thread = None

    def _watch(self) -> None:
        met = math.inf
        while True:
            deadline = self._deadline
            # One that was met and is still there: nobody has begun to wait again.
            look_at = math.inf if deadline == met else deadline
            remaining = look_at - time.monotonic()
            if remaining <= 0:
                met = deadline
                self.wake()
                continue
            self._looks_at = look_at
            # Whoever begins to wait from here on sees when this looks next; who did before is seen.
            if self._deadline != deadline:
                continue
            try:
                if not self._going_on.get(timeout=min(remaining, threading.TIMEOUT_MAX)):
                    return
            except queue.Empty:
                pass
