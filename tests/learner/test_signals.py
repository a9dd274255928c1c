"""Which signals end a command, how it is told, and what is cut off then."""

import os
import queue
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from learner.signals import ENDING, CutOff, ending_signals


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
    heard: queue.Queue[str] = queue.Queue()
    with ending_signals(heard.put) as received:
        assert not received
        assert received.name == ""
        os.kill(os.getpid(), number)
        assert heard.get(timeout=10) == signal.Signals(number).name
        assert received.name == signal.Signals(number).name
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
    with ending_signals(lambda name: woken.set()) as received:
        assert woken.wait(10)
        assert received.status == 130


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(each) for each in ENDING]
    with ending_signals(lambda name: None):
        assert [signal.getsignal(each) for each in ENDING] != before
    assert [signal.getsignal(each) for each in ENDING] == before


def test_nohup_is_respected() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with ending_signals(lambda name: None) as received:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not received
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_work_is_cut_off_in_the_middle() -> None:
    work, begun = CutOff(), threading.Event()
    cutter = threading.Thread(target=lambda: begun.wait(10) and work.cut())
    cutter.start()
    ended: list[str] = []

    def endless() -> None:
        begun.set()
        try:
            while True:
                pass
        finally:
            ended.append("tidy")

    assert not work.run(endless)
    cutter.join()
    assert ended == ["tidy"]
    assert signal.getsignal(signal.SIGURG) == signal.SIG_DFL


def test_work_that_was_cut_off_before_it_began_does_not_begin() -> None:
    work = CutOff()
    work.cut()
    assert not work.run(lambda: pytest.fail("it has begun"))


def test_what_comes_after_the_work_is_not_cut_off() -> None:
    work = CutOff()
    assert work.run(lambda: None)
    work.cut()
    os.kill(os.getpid(), signal.SIGURG)


def test_an_error_of_the_work_is_its_own() -> None:
    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        CutOff().run(broken)
    assert signal.getsignal(signal.SIGURG) == signal.SIG_DFL
