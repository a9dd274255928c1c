"""Which signals end a command, and how it is told."""

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from learner.signals import ENDING, ending_signals


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    former = {each: signal.getsignal(each) for each in ENDING}
    yield
    for each, handler in former.items():
        signal.signal(each, handler)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0), (signal.SIGHUP, 0)]
)
def test_each_wakes_once_and_decides_the_status(number: int, status: int) -> None:
    # Where the tests themselves run under nohup, SIGHUP would stay ignored.
    signal.signal(number, signal.SIG_DFL)
    woken = threading.Event()
    with ending_signals(woken.set) as received:
        assert not received
        os.kill(os.getpid(), number)
        assert woken.wait(10)
        assert received
        assert received.status == status
        # A second one ends the process at once.
        assert signal.getsignal(number) == signal.SIG_DFL


def test_one_that_comes_while_the_handlers_are_set_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    set_handler, sent = signal.signal, threading.Event()

    def set_and_send(number: int, handler: Any) -> Any:
        former = set_handler(number, handler)
        if number == signal.SIGINT and not sent.is_set():
            sent.set()
            os.kill(os.getpid(), number)
        return former

    monkeypatch.setattr(signal, "signal", set_and_send)
    woken = threading.Event()
    with ending_signals(woken.set) as received:
        assert woken.wait(10)
        assert received.status == 130


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(each) for each in ENDING]
    with ending_signals(lambda: None):
        assert [signal.getsignal(each) for each in ENDING] != before
    assert [signal.getsignal(each) for each in ENDING] == before


def test_nohup_is_respected() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with ending_signals(lambda: None) as received:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not received
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
