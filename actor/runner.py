"""Runs the client's coroutines for callers that are none."""

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
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
            Interrupted: `interrupt` was called, now or before. What the coroutine has begun is left
                alone: cancelling it would cancel its stream, and the session could not be closed on it
                any more.
            RuntimeError: the runner has finished.
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
        self._finishing = False

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        _check_open(self._loop, coroutine)
        if self._is_interrupted():
            coroutine.close()
            raise Interrupted("interrupted")
        task = self._loop.create_task(coroutine)
        try:
            return self._loop.run_until_complete(task)
        except RuntimeError:
            if self._is_interrupted() and not task.done():
                raise Interrupted("interrupted") from None
            # The coroutine's own, or another loop runs in this thread.
            task.cancel()
            raise
        finally:
            if not task.done():
                task.add_done_callback(_ignore)

    def interrupt(self) -> None:
        self._interrupted = True
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(self._stop)

    def _is_interrupted(self) -> bool:
        return self._interrupted

    def _stop(self) -> None:
        if not self._finishing:
            self._loop.stop()

    def finish(self, coroutine: Coroutine[Any, Any, None]) -> None:
        if self._loop.is_closed():
            coroutine.close()
            return
        self._finishing = True
        # A stop that was scheduled may not have been met by a run; it is met here.
        self._loop.call_soon(self._loop.stop)
        self._loop.run_forever()
        self._loop.run_until_complete(coroutine)
        self._loop.run_until_complete(_cancel_rest(self._loop))
        self._loop.close()


class ThreadRunner:
    """Runs the loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._interrupted: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._loop.run_forever, name="client", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        _check_open(self._loop, coroutine)
        return asyncio.run_coroutine_threadsafe(self._until_interrupted(coroutine), self._loop).result()

    async def _until_interrupted(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        if self._interrupted.done():
            coroutine.close()
            raise Interrupted("interrupted")
        task = self._loop.create_task(coroutine)
        task.add_done_callback(_ignore)
        either: list[asyncio.Future[Any]] = [task, self._interrupted]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Interrupted("interrupted")
        return task.result()

    def interrupt(self) -> None:
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(self._set_interrupted)

    def _set_interrupted(self) -> None:
        if not self._interrupted.done():
            self._interrupted.set_result(None)

    def finish(self, coroutine: Coroutine[Any, Any, None]) -> None:
        if self._loop.is_closed():
            coroutine.close()
            return
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        asyncio.run_coroutine_threadsafe(_cancel_rest(self._loop), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _check_open(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, object]) -> None:
    if loop.is_closed():
        coroutine.close()
        raise RuntimeError("the client is closed")


def _ignore(task: "asyncio.Task[Any]") -> None:
    """Take note of how an abandoned task ended, so that asyncio does not complain that nobody did."""
    if not task.cancelled():
        task.exception()


async def _cancel_rest(loop: asyncio.AbstractEventLoop) -> None:
    rest = asyncio.all_tasks(loop) - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
