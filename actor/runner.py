"""Runs the client's coroutines for callers that are none."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Protocol, TypeVar

from protos.errors import SeedbedError

Result = TypeVar("Result")


class Interrupted(SeedbedError):
    """`interrupt` ended the waiting."""


class Runner(Protocol):
    """One event loop, driven by a synchronous caller."""

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """The coroutine's result.

        Raises:
            Interrupted: `interrupt` was called, now or before.
        """
        ...

    def interrupt(self) -> None:
        """Make `run` raise. For signal handlers and other threads."""
        ...

    def finish(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a last coroutine, even after `interrupt`, and end the loop. Idempotent."""
        ...


def make_runner() -> Runner:
    """In this thread where it is free, which saves two thread switches a step. Inside a running event
    loop (a notebook) it is not, and a thread of its own is used."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return HereRunner()
    return ThreadRunner()


class HereRunner:
    """Runs the loop in the caller's thread while the caller waits."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._interrupted = False

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        task = self._loop.create_task(coroutine)
        if self._interrupted:
            task.cancel()
        try:
            return self._loop.run_until_complete(task)
        except asyncio.CancelledError:
            raise Interrupted("interrupted") from None
        except RuntimeError:
            # The loop was stopped. The task is left alone: cancelling it would cancel the stream, and
            # the session could not be closed on it any more.
            if task.done():
                raise
            task.add_done_callback(_ignore)
            raise Interrupted("interrupted") from None

    def interrupt(self) -> None:
        self._interrupted = True
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)

    def finish(self, coroutine: Coroutine[Any, Any, None]) -> None:
        if self._loop.is_closed():
            coroutine.close()
            return
        if self._interrupted:
            # The stop that `interrupt` scheduled may not have been met by a run; it is met here.
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()
        self._loop.run_until_complete(coroutine)
        self._loop.run_until_complete(_cancel_rest(self._loop))
        self._loop.close()


class ThreadRunner:
    """Runs the loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._interrupted = False
        self._future: Future[Any] | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="client", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        self._future = future
        if self._interrupted:
            future.cancel()
        try:
            return future.result()
        except CancelledError:
            raise Interrupted("interrupted") from None

    def interrupt(self) -> None:
        self._interrupted = True
        if self._future is not None:
            self._future.cancel()

    def finish(self, coroutine: Coroutine[Any, Any, None]) -> None:
        if self._loop.is_closed():
            coroutine.close()
            return
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        asyncio.run_coroutine_threadsafe(_cancel_rest(self._loop), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _ignore(task: "asyncio.Task[Any]") -> None:
    """Take note of how an abandoned task ended, so that asyncio does not complain that nobody did."""
    if not task.cancelled():
        task.exception()


async def _cancel_rest(loop: asyncio.AbstractEventLoop) -> None:
    rest = asyncio.all_tasks(loop) - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
