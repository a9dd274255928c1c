"""The watchdog: a policy call or an update that hangs is said aloud, and shows in the health check."""

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Mapping

from learner.telemetry.statistics import BusyClock

logger = logging.getLogger(__name__)


class Watchdog:
    """Looks now and then at how long each thread's present piece of work has been running.

    Nothing is killed: what hangs is mostly in foreign code, whose stack in the log says where, and
    whoever watches the health check decides (Kubernetes restarts the process).

    Args:
        limit_seconds: longer than this is a hang.
        clocks: of the threads, by name.
        on_change: told False once something hangs, and True once nothing does any more; called by the
            watchdog's thread.
        on_failure: hears of a failure of the watchdog itself.
        wait: waits so many seconds, and says whether the watchdog is to end; tests give their own.
    """

    def __init__(
        self,
        limit_seconds: float,
        clocks: Mapping[str, BusyClock],
        on_change: Callable[[bool], None],
        *,
        on_failure: Callable[[BaseException], None],
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self._limit_seconds = limit_seconds
        self._clocks = clocks
        self._on_change = on_change
        self._on_failure = on_failure
        self._closing = threading.Event()
        self._wait = wait or self._closing.wait
        self._hanging: frozenset[str] = frozenset()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread. Idempotent; does nothing before `start`."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._wait(self._limit_seconds / 4):
                self._look()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the owner hears of it
            self._on_failure(error)

    def _look(self) -> None:
        seconds = {name: clock.working_seconds() for name, clock in self._clocks.items()}
        hanging = frozenset(name for name, each in seconds.items() if each > self._limit_seconds)
        before, self._hanging = self._hanging, hanging
        for name in sorted(hanging - before):
            logger.error(
                "%s has been at one step for %.0f s: it hangs. Where each thread is: %s",
                name,
                seconds[name],
                stacks(),
            )
        for name in sorted(before - hanging):
            logger.warning("%s goes on", name)
        if bool(hanging) != bool(before):
            self._on_change(not hanging)


def stacks() -> str:
    """The Python stack of every thread, the innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n" + "\n".join(
        f"{names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
