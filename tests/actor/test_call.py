"""`Call` on a completion queue that the test fills: what is sent when, and what is left behind."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import grpc
import pytest
from grpc._cython import cygrpc

import actor.call
from actor.call import Call
from protos.errors import ConfigError


class Event(NamedTuple):
    tag: str
    batch_operations: Sequence[Any] = ()


class Operation(NamedTuple):
    """What gRPC says has come of an operation."""

    said: Any = None

    def message(self) -> Any:
        return self.said

    def code(self) -> int:
        return int(self.said[0])

    def details(self) -> str:
        return str(self.said[1])


class FakeQueue:
    """A channel of gRPC's: takes operations down, and reports what the test puts into `events`."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        self.begun: list[str] = []
        self.ended = self.closed = False

    def integrated_call(self, *_: Any) -> "FakeQueue":
        return self

    def next_call_event(self) -> Event:
        return self.events.popleft()

    def operate(self, operations: Sequence[Any], tag: str) -> bool:
        if self.ended:
            return False
        if tag == "sent" and "sent" in self.begun:
            raise ValueError("Internal gRPC call error 8")
        self.begun.append(tag)
        if not operations:
            self.events.append(Event(tag))
        return True

    def cancel(self, code: int, details: str) -> None:
        self.ended = True

    def close(self, code: int, details: str) -> None:
        self.closed = True


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> FakeQueue:
    made = FakeQueue()
    monkeypatch.setattr(cygrpc, "Channel", lambda *_: made)
    return made


def make_call() -> Call:
    return Call("a learner", "/x/Y", options=(), credentials=None, metadata=())


class GivenUp(Exception):
    """What ends a wait."""


def give_up() -> None:
    raise GivenUp


def nothing() -> None:
    pass


def sent(queue: FakeQueue) -> Callable[[], None]:
    """Reports, when it is called, that the first message is on its way."""

    def report() -> None:
        queue.begun.remove("sent")
        queue.events.append(Event("sent"))

    return report


@pytest.mark.parametrize("last", [lambda call, kick: call.send(b"last", kick), Call.half_close])
def test_what_follows_waits_for_a_message_that_is_still_on_its_way(
    queue: FakeQueue, last: Callable[[Call, Callable[[], None]], None]
) -> None:
    call = make_call()
    call.kick()
    with pytest.raises(GivenUp):
        call.send_and_receive(b"step", give_up)
    call.kick()
    last(call, sent(queue))
    assert not queue.events, "it waited for the first message"


def test_a_wait_ends_with_the_answer(queue: FakeQueue) -> None:
    call = make_call()
    queue.events += [Event("begun"), Event("sent"), Event("received", [Operation(b"answer")])]
    assert call.send_and_receive(b"step", give_up) == b"answer"


def test_an_end_is_told_by_its_status(queue: FakeQueue) -> None:
    call = make_call()
    queue.events += [
        Event("status", [None, Operation((grpc.StatusCode.UNAVAILABLE.value[0], "gone"))]),
        Event("sent"),
        Event("received", [Operation(None)]),
    ]
    assert call.send_and_receive(b"step", nothing) is None
    queue.ended = True
    assert call.send_and_receive(b"step", nothing) is None, "at once"
    assert call.status(nothing) == (grpc.StatusCode.UNAVAILABLE, "gone")


def test_a_connection_whose_call_does_not_end_is_left_open(
    queue: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC would wait for the end for ever."""
    monkeypatch.setattr(actor.call, "DRAIN_SECONDS", 0.0)
    call = make_call()
    monkeypatch.setattr(queue, "cancel", lambda *_: None)
    call.cancel()
    assert not queue.closed


def test_a_connection_that_lost_an_event_to_ctrl_c_is_left_open_at_once(
    queue: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose() -> Event:
        raise KeyboardInterrupt

    monkeypatch.setattr(actor.call, "DRAIN_SECONDS", 3600)
    call = make_call()
    with monkeypatch.context() as patch:
        patch.setattr(call, "_next_event", lose)
        with pytest.raises(KeyboardInterrupt):
            call.send_and_receive(b"step", nothing)
    monkeypatch.setattr(queue, "cancel", lambda *_: None)
    cancelled = grpc.StatusCode.CANCELLED.value[0]
    queue.events.append(Event("status", [None, Operation((cancelled, "by the client"))]))
    call.cancel()
    assert not queue.closed


def test_a_call_that_ended_closes_its_connection(queue: FakeQueue) -> None:
    make_call().cancel()
    assert queue.closed


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda patch: patch.delattr(FakeQueue, "integrated_call"), "has no attribute"),
        (lambda patch: patch.setattr(FakeQueue, "integrated_call", lambda _: None), "positional"),
        (lambda patch: patch.delattr(cygrpc, "SendMessageOperation"), "has no attribute"),
    ],
)
def test_internals_that_are_not_known_are_refused(
    queue: FakeQueue,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[pytest.MonkeyPatch], None],
    found: str,
) -> None:
    change(monkeypatch)
    with pytest.raises(ConfigError) as refusal:
        make_call()
    assert str(refusal.value).startswith(
        f"grpcio {grpc.__version__}: expected gRPC's internals as they were from 1.74 to 1.85, "
        "found others ("
    )
    assert found in str(refusal.value)
    assert str(refusal.value).endswith("): install grpcio 1.74 to 1.85")
