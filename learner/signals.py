"""SIGINT, SIGTERM and SIGHUP (a terminal that closes) end a command in order."""

import _thread
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
    def name(self) -> str:
        """Of the first one, such as SIGTERM; empty if there was none."""
        return signal.Signals(self._numbers[0]).name if self._numbers else ""

    @property
    def status(self) -> int:
        """The process's exit status: 130 after Ctrl-C, as shells expect, else 0."""
        return 130 if signal.SIGINT in self._numbers else 0


@contextmanager
def ending_signals(wake: Callable[[str], None]) -> Iterator[Received]:
    """Call `wake` with the name of the first of these signals; a second one ends the process at once.

    SIGHUP stays ignored under nohup.
    """
    received = Received()

    def handle(number: int, frame: FrameType | None) -> None:
        received.add(number)
        for each in former:
            signal.signal(each, signal.SIG_DFL)
        # In a thread: the handler interrupts code that may hold the very locks that waking takes.
        threading.Thread(target=wake, args=(received.name,), name="signal", daemon=True).start()

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


class _Cut(BaseException):
    """Raised in the main thread, through whatever it does."""


class CutOff:
    """Work of the main thread that other threads can cut off, such as an import of many seconds.

    Where the work swallows what is raised in it, it goes on to its end.
    """

    def __init__(self) -> None:
        self._cut = False
        self._working = False

    def run(self, work: Callable[[], None]) -> bool:
        """Do `work`, unless it is cut off. By the main thread. True if it came to its end."""
        # One that nobody sends: where no handler is set it does nothing.
        former = signal.signal(signal.SIGURG, self._raise)
        try:
            self._working = True
            if self._cut:
                return False
            try:
                work()
            finally:
                self._working = False
        except _Cut:
            return False
        finally:
            self._working = False
            signal.signal(signal.SIGURG, former)
        return True

    def cut(self) -> None:
        """Cut it off, now or as soon as it begins. Any thread may call it. Idempotent."""
        self._cut = True
        if self._working:
            _thread.interrupt_main(signal.SIGURG)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if self._working and self._cut:
            self._working = False
            raise _Cut
