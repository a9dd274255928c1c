"""Signals that end an actor, as a wish that its loop meets."""

import signal
import threading
from collections.abc import Callable
from types import FrameType


class StopSignals:
    """SIGTERM and SIGINT as a wish to stop after the step at hand; a second one ends the process.

    A context manager; `is_set` tells, and the callbacks are called once, in the signal's handler.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._callbacks: list[Callable[[], None]] = []
        self._former: dict[int, object] = {}
        self.exit_status = 0
        self.name = ""
        """of the signal, such as SIGTERM; empty while none has come"""

    def __enter__(self) -> "StopSignals":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._former[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal() returned

    def is_set(self) -> bool:
        return self._event.is_set()

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
        self._event.set()
        for callback in self._callbacks:
            callback()
