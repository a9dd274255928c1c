"""An event loop whose thread waits in gRPC's completion queue.

`grpc.aio` polls that queue in a thread of its own, which wakes the loop by a socket for each event. Here
the loop's thread asks the queue itself: gRPC reads the network in this thread, and what it read is
handled at once. docs/decisions/0025-completion-queue.md says what that is worth, and what it costs:
`grpc._cython.cygrpc`, which grpc's own server is made of, is not public.
"""

import asyncio
import selectors
import threading
import time
from typing import Any

from grpc._cython import cygrpc

MOST_EVENTS = 256
"""Events that are handled in a row before timers and callbacks have their turn."""

UNHEARD_SECONDS = 0.05
"""How long the loop waits at most while there was no call yet: only a call can be used to wake it."""


class CompletionLoop(asyncio.SelectorEventLoop):
    """asyncio for coroutines, timers and callbacks, but no files: it waits for gRPC's events alone.

    The tag of an operation on `queue` is a callable, which gets the event that says that it is done.

    `_lock` guards `_call`, so that nothing is put into the queue once it shuts down.
    """

    def __init__(self) -> None:
        self.queue = cygrpc.CompletionQueue()
        """what servers on this loop work with"""
        # Of the kind that its own thread may take again: the garbage collector runs where it likes, and
        # asyncio's hook for generators that were left wakes the loop.
        self._lock = threading.RLock()
        self._call: Any = None
        super().__init__(_Queue(self))

    def wake_by(self, call: Any) -> None:
        """Use this call, running or over, to wake the loop from other threads; None for no call."""
        with self._lock:
            self._call = call

    def poll(self, timeout: float | None) -> None:
        """Wait for an event, at most so many seconds (None for any number), and handle it and those that
        are there too."""
        if self._call is None and (timeout is None or timeout > UNHEARD_SECONDS):
            timeout = UNHEARD_SECONDS
        # The queue's clock is the wall's.
        deadline = time.time() + timeout if timeout else timeout
        for _ in range(MOST_EVENTS):
            event = self.queue.poll(deadline)
            if event.tag is None:
                return
            try:
                event.tag(event)
            except Exception as error:  # noqa: BLE001 - as any callback's, the loop's owner hears of it
                self.call_exception_handler({"message": "a gRPC event failed", "exception": error})
            # It holds its call, which must not outlive its end.
            del event
            deadline = 0

    def close(self) -> None:
        """Idempotent. Servers on this loop must have ended."""
        if not self.is_closed():
            self.wake_by(None)
            self.queue.shutdown()
            while self.queue.poll().completion_type != cygrpc.CompletionType.queue_shutdown:
                pass
        super().close()

    def _write_to_self(self) -> None:
        # asyncio's own hook for call_soon_threadsafe. A batch of no operations is done at once.
        with self._lock:
            if self._call is not None:
                self._call.start_server_batch((), _woken)


class _Queue(selectors.SelectSelector):
    """Takes the place of files that become ready."""

    def __init__(self, loop: CompletionLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        self._loop.poll(timeout)
        return []


def _woken(event: object) -> None:
    """The loop goes round: what woke it is among its callbacks."""
