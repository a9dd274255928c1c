"""Policy calls on the event loop, for policies that take no longer than handing their work over does."""

import asyncio
from collections.abc import Callable

from learner.serving.batcher import Batcher, InferenceBatch, Request

QUICK_SECONDS = 0.001
"""Most seconds of the largest policy call on the event loop, which hears nobody meanwhile."""


class QuickInference:
    """Answers what the event loop has taken in, before it waits for more. Used on that loop alone.

    Where steps have no room, which only training makes, it leaves the batch to the inference thread,
    which can wait.

    Args:
        batcher: takes the requests.
        has_room: whether steps may be appended now.
        answer: policy, experience and reply for one batch.
    """

    def __init__(
        self, batcher: Batcher, has_room: Callable[[], bool], answer: Callable[[InferenceBatch], None]
    ) -> None:
        self._batcher = batcher
        self._has_room = has_room
        self._answer = answer
        self._scheduled = False

    def submit(self, request: Request) -> None:
        """As `Batcher.submit`."""
        self._batcher.add(request)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            # After all messages that are there now.
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        if not self._has_room():
            self._batcher.wake()
        # None where a thread has taken them, or will once it is free.
        elif (batch := self._batcher.take_waiting()) is not None:
            self._answer(batch)
            if self._batcher.release(batch):
                self._schedule()
