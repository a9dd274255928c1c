"""SIGINT, SIGTERM and SIGHUP (a terminal that closes) end a command in order."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Received:
    """Which signals came. False while there was none."""

    def __init__(self) -> None:
        self._numbers: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def add(self, number: int) -> None:
        self._numbers.append(number)

    @property
    def status(self) -> int:
        """The process's exit status: 130 after Ctrl-C, as shells expect, else 0."""
        return 130 if signal.SIGINT in self._numbers else 0


@contextmanager
def ending_signals(wake: Callable[[], None]) -> Iterator[Received]:
    """Call `wake` at the first of these signals; a second one ends the process at once.

    SIGHUP stays ignored under nohup.
    """
    received = Received()

    def handle(number: int, frame: FrameType | None) -> None:
        received.add(number)
        for each in former:
            signal.signal(each, signal.SIG_DFL)
        # In a thread: the handler interrupts code that may hold the very locks that waking takes.
        threading.Thread(target=wake, name="signal", daemon=True).start()

    # SIGINT is heard in any case: shells ignore it in what they start in the background.
    nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    # Complete before the first of them may come.
    former = {each: signal.getsignal(each) for each in ENDING if not (nohup and each == signal.SIGHUP)}
    for each in former:
        signal.signal(each, handle)
    try:
        yield received
    finally:
        for each, handler in former.items():
            signal.signal(each, handler)
