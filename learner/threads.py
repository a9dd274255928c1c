"""The learner's threads: one owner, one first failure, no silent death."""

import logging
import threading
import time
from collections.abc import Callable

from protos.errors import WorkerFailure
from protos.words import text_of

logger = logging.getLogger(__name__)


class Threads:
    """Runs the learner's worker threads and keeps the first failure of any part.

    A failure calls `on_failure` once, which must wake the main thread; that then calls
    `raise_failure`. `_lock` guards the failure.
    """

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self._on_failure = on_failure
        self._threads: list[threading.Thread] = []
        self._failure: tuple[str, BaseException] | None = None
        self._lock = threading.Lock()

    def start(self, name: str, target: Callable[[], None]) -> None:
        """Run `target` in a thread until it returns; an exception in it is a failure of the learner."""

        def body() -> None:
            try:
                target()
            except BaseException as error:  # noqa: BLE001 - whatever it is, the main thread re-raises it
                self.fail(name, error)

        # Daemon: a thread stuck in foreign code must not keep a failed process alive.
        thread = threading.Thread(target=body, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def fail(self, name: str, error: BaseException) -> None:
        """Report the failure of a part called `name`; the first one wins."""
        with self._lock:
            if self._failure is not None:
                logger.error("%s failed too, after the first failure: %s", name, text_of(error))
                return
            self._failure = (name, error)
        self._on_failure()

    @property
    def failed(self) -> bool:
        """Whether there was a failure."""
        with self._lock:
            return self._failure is not None

    def raise_failure(self) -> None:
        """Raise the first failure, if there was one.

        Raises:
            WorkerFailure: naming the part, with the original error as its cause.
        """
        with self._lock:
            failure = self._failure
        if failure is not None:
            name, error = failure
            raise WorkerFailure(f"{name} failed: {type(error).__name__}: {text_of(error)}") from error

    def join(self, timeout_seconds: float) -> list[str]:
        """Wait so long for all threads together to end; the names of those that did not."""
        deadline = time.monotonic() + timeout_seconds
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        return [thread.name for thread in self._threads if thread.is_alive()]
