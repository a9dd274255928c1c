"""The gRPC server on a completion queue, by gRPC's own clients."""

import asyncio
import queue
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from learner.serving.completion_loop import CompletionLoop
from learner.serving.health import HealthServicer
from learner.serving.rpc import Rpc
from learner.serving.rpc_server import Refused, RpcServer
from protos.errors import NoCapacity
from tests.fakes import PATIENCE_SECONDS
from tests.learner.serving.wire import http2_call

METHOD = "/a.Service/Method"
OPTIONS = [("grpc.use_local_subchannel_pool", 1)]


class Served:
    """A server on a loop of its own thread, with one method."""

    def __init__(self, address: str, **options: Any) -> None:
        self.address = address
        self.failures: list[Any] = []
        self.handler: Callable[[Rpc], Awaitable[None]] = echo
        self.loop = CompletionLoop()
        self.loop.set_exception_handler(lambda loop, context: self.failures.append(context["exception"]))
        self._options = options
        self._thread = threading.Thread(target=self.loop.run_forever)

    def __enter__(self) -> "Served":
        self._thread.start()
        self.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.server.stop(0.0))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def run(self, coroutine: Any) -> Any:
        """What the coroutine comes to on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE_SECONDS)

    def call(self, requests: Iterable[bytes], method: str = METHOD) -> Any:
        """A client's call, with bytes for messages."""
        channel = grpc.insecure_channel(self.address, OPTIONS)
        call: Any = channel.stream_stream(method)(iter(requests), timeout=PATIENCE_SECONDS)
        call.channel = channel
        return call

    async def _start(self) -> None:
        self.server = RpcServer(self.loop, (), **self._options)
        self.server.route(METHOD, lambda rpc: self.handler(rpc))
        health = HealthServicer()
        health.set("", health_pb2.HealthCheckResponse.SERVING)
        self.server.add(health_pb2_grpc.add_HealthServicer_to_server, health)
        self.port = self.server.bind(self.address)
        self.server.start()


async def echo(rpc: Rpc) -> None:
    while (message := await rpc.read()) is not None:
        rpc.send(message)


@pytest.fixture
def served(address: str) -> Iterator[Served]:
    with Served(address) as server:
        yield server


def ended(call: Any) -> tuple[grpc.StatusCode, str]:
    return call.code(), call.details()


def test_messages_come_and_go_in_order_and_the_call_ends_well(served: Served) -> None:
    messages = [bytes([number]) * number for number in range(100)]
    call = served.call(messages)
    assert list(call) == messages
    assert ended(call) == (grpc.StatusCode.OK, "")


def test_what_was_sent_arrives_before_the_status(served: Served) -> None:
    async def many(rpc: Rpc) -> None:
        for number in range(100):
            rpc.send(bytes([number]))
        rpc.finish(grpc.StatusCode.ABORTED, "that is all")
        rpc.finish(grpc.StatusCode.INTERNAL, "not this")
        rpc.send(b"nor this")

    served.handler = many
    call = served.call([])
    received = []
    with pytest.raises(grpc.RpcError):
        received.extend(iter(call.__next__, None))
    assert ended(call) == (grpc.StatusCode.ABORTED, "that is all")


def test_it_knows_who_calls_and_what(served: Served) -> None:
    seen: queue.SimpleQueue[Any] = queue.SimpleQueue()

    async def look(rpc: Rpc) -> None:
        seen.put((rpc.method, rpc.metadata["some"], rpc.peer()))

    served.handler = look
    with grpc.insecure_channel(served.address, OPTIONS) as channel:
        call = channel.stream_stream(METHOD)(iter([]), metadata=(("some", "thing"),))
        assert list(call) == []
    method, value, peer = seen.get(timeout=PATIENCE_SECONDS)
    assert (method, value) == (METHOD, "thing")
    assert peer.startswith("unix:")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Refused(grpc.StatusCode.DATA_LOSS, "why"), (grpc.StatusCode.DATA_LOSS, "why")),
        (
            ValueError("secret"),
            (grpc.StatusCode.UNKNOWN, "unexpected failure in the learner; see its log"),
        ),
    ],
)
def test_a_handler_that_fails_ends_its_call_alone(
    served: Served, error: Exception, expected: tuple[grpc.StatusCode, str]
) -> None:
    async def fail(rpc: Rpc) -> None:
        raise error

    served.handler = fail
    call = served.call([])
    assert ended(call) == expected
    served.handler = echo
    assert list(served.call([b"on"])) == [b"on"]


def test_a_method_that_nobody_serves(served: Served) -> None:
    call = served.call([], "/a.Service/Other")
    assert ended(call) == (grpc.StatusCode.UNIMPLEMENTED, "Method not found!")


def test_a_call_that_is_not_authorized_never_reaches_its_handler(address: str) -> None:
    def authorize(rpc: Rpc) -> NoCapacity | None:
        return None if "token" in rpc.metadata else NoCapacity("no token")

    with Served(address, authorize=authorize) as served:
        assert ended(served.call([b"x"])) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "no token")


def test_calls_beyond_the_most_are_turned_away(address: str) -> None:
    with Served(address, max_calls=1) as served:
        requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        first = served.call(iter(requests.get, b""))
        requests.put(b"x")
        assert next(first) == b"x"
        assert ended(served.call([])) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "too many calls at once",
        )
        requests.put(b"")
        assert list(first) == []


def test_who_breaks_a_call_off_cancels_its_handler(served: Served) -> None:
    told: queue.SimpleQueue[str] = queue.SimpleQueue()

    async def wait(rpc: Rpc) -> None:
        told.put("begun")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.put("cancelled")
            raise

    served.handler = wait
    call = served.call(iter(queue.SimpleQueue[bytes]().get, None))
    assert told.get(timeout=PATIENCE_SECONDS) == "begun"
    call.cancel()
    assert told.get(timeout=PATIENCE_SECONDS) == "cancelled"


def test_a_client_that_does_not_read_is_waited_for(served: Served) -> None:
    """Its window is full some time: what comes then is unsent, and `write` waits."""
    unsent: queue.SimpleQueue[int] = queue.SimpleQueue()
    message = bytes(1 << 20)

    async def flood(rpc: Rpc) -> None:
        for _ in range(50):
            rpc.send(message)
        unsent.put(rpc.unsent)
        await rpc.write(b"last")
        unsent.put(rpc.unsent)

    served.handler = flood
    call = served.call([])
    assert unsent.get(timeout=PATIENCE_SECONDS) > 0
    assert [len(each) for each in call] == [1 << 20] * 50 + [4]
    assert unsent.get(timeout=PATIENCE_SECONDS) == 0


def test_other_threads_wake_the_loop_before_the_first_call_and_after_it(served: Served) -> None:
    async def ident() -> int:
        return threading.get_ident()

    before = served.run(ident())
    assert list(served.call([b"x"])) == [b"x"]
    assert served.run(ident()) == before != threading.get_ident()


def test_the_loop_is_woken_by_who_wakes_it_already() -> None:
    """As by the garbage collector, which may find a generator of the loop's anywhere."""
    loop = CompletionLoop()
    woken: list[str] = []

    class Call:
        def start_server_batch(self, operations: object, tag: object) -> None:
            woken.append("a time")
            if len(woken) == 1:
                loop.call_soon_threadsafe(print)

    loop.wake_by(Call())
    waking = threading.Thread(target=loop.call_soon_threadsafe, args=[print], daemon=True)
    waking.start()
    waking.join(PATIENCE_SECONDS)
    assert len(woken) == 2
    loop.close()


def test_an_event_that_fails_is_told_to_the_owner(served: Served) -> None:
    async def take_badly(rpc: Rpc) -> None:
        rpc.receive(lambda data: 1 // 0)
        await asyncio.Event().wait()

    served.handler = take_badly
    call = served.call([b"x"])
    while not served.failures:
        served.run(asyncio.sleep(0.001))
    assert isinstance(served.failures[0], ZeroDivisionError)
    call.cancel()


def test_stopping_ends_the_calls_that_are_left(address: str) -> None:
    with Served(address) as served:
        call = served.call(iter(queue.SimpleQueue[bytes]().get, None))
        next_call: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        other = served.call(iter(next_call.get, None))
        next_call.put(b"x")
        assert next(other) == b"x"
    for each in (call, other):
        assert each.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)


def test_a_call_that_has_come_when_the_server_stops_harms_nothing(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one of hundreds that come back while the learner ends."""
    met = threading.Event()
    requested = RpcServer._requested

    def stop_before(server: RpcServer, event: Any) -> None:
        loop = asyncio.get_running_loop()
        if event.success:
            stopping = loop.create_task(server.stop(0.0))
            loop.call_soon(requested, server, event)
            stopping.add_done_callback(lambda _: met.set())

    monkeypatch.setattr(RpcServer, "_requested", stop_before)
    served = Served(address)
    with served:
        call = served.call([])
        assert met.wait(PATIENCE_SECONDS)
        assert call.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
    assert not served.failures


@pytest.mark.parametrize("family", [socket.AF_UNIX, socket.AF_INET])
def test_stopping_cuts_off_who_reads_nothing_and_nobody_else(
    address: str, family: int, caplog: pytest.LogCaptureFixture
) -> None:
    """gRPC would write to it to the end of time, and be stopped no sooner."""
    enough = 64 << 20

    async def much(rpc: Rpc) -> None:
        rpc.send(bytes(enough))
        await asyncio.Event().wait()

    unix = family == socket.AF_UNIX
    with (
        Served(f"{address}-other") as other,
        Served(address if unix else "127.0.0.1:0") as served,
        socket.socket(family) as silent,
    ):
        served.handler = much
        silent.settimeout(PATIENCE_SECONDS)
        silent.connect(address.removeprefix("unix:") if unix else ("127.0.0.1", served.port))
        silent.sendall(http2_call(METHOD, window=2 * enough))
        received = 0
        while received < 1 << 16:  # More than how it greets.
            received += len(silent.recv(1 << 16))
        requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        going_on = other.call(iter(requests.get, b""))
        served.run(served.server.stop(0.0))
        assert [record.getMessage() for record in caplog.records] == [
            "1 connections were cut off: what was sent on them was not read"
        ]
        for message in (b"x", b"y"):
            requests.put(message)
            assert next(going_on) == message
        requests.put(b"")


def health_call(served: Served, requests: list[bytes]) -> Any:
    return served.call(requests, f"/{health.SERVICE_NAME}/Check")


def test_generated_services_answer(served: Served) -> None:
    (answer,) = health_call(served, [health_pb2.HealthCheckRequest().SerializeToString()])
    status = health_pb2.HealthCheckResponse.FromString(answer).status
    assert status == health_pb2.HealthCheckResponse.SERVING
    unknown = health_pb2.HealthCheckRequest(service="x").SerializeToString()
    assert health_call(served, [unknown]).code() == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("requests", "details"),
    [
        ([b"\xff"], "expected another message, or a whole one"),
        ([], "expected a message, found none"),
    ],
)
def test_what_is_no_message_of_theirs_is_the_clients_fault(
    served: Served, requests: list[bytes], details: str, caplog: pytest.LogCaptureFixture
) -> None:
    call = health_call(served, requests)
    assert ended(call) == (grpc.StatusCode.INVALID_ARGUMENT, details)
    assert not caplog.records


# An answer, and the next message with it ---------------------------------------------------------


def exchanging(
    answered: Callable[[Rpc, int], None] = lambda rpc, count: None,
) -> Callable[[Rpc], Awaitable[None]]:
    """Answers each message with itself and asks for the next one in the same breath; `answered` hears of
    each."""

    async def handle(rpc: Rpc) -> None:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        count = 0

        def take(message: bytes | None) -> None:
            nonlocal count
            if message is None:
                if not over.done():
                    over.set_result(None)
                return
            count += 1
            rpc.send_and_receive(message, take)
            answered(rpc, count)

        rpc.receive(take)
        await over

    return handle


def test_an_answer_and_the_wait_for_the_next_message_are_one(served: Served) -> None:
    served.handler = exchanging()
    messages = [bytes([number % 256]) * 3000 for number in range(500)]
    call = served.call(messages)
    assert list(call) == messages
    assert ended(call) == (grpc.StatusCode.OK, "")
    assert served.failures == []


def test_a_status_does_not_wait_for_the_next_message(served: Served) -> None:
    def end(rpc: Rpc, count: int) -> None:
        if count == 2:
            rpc.finish(grpc.StatusCode.ABORTED, "that is all")
            rpc.send(b"not this")

    served.handler = exchanging(end)
    with Said() as said:
        call = served.call(said)
        for message in (b"one", b"two"):
            said.say(message)
            assert next(call) == message
        with pytest.raises(grpc.RpcError):
            next(call)
        assert ended(call) == (grpc.StatusCode.ABORTED, "that is all")
    assert served.failures == []


def test_a_client_that_goes_away_while_its_next_message_is_awaited_leaves_nothing(
    served: Served,
) -> None:
    served.handler = exchanging()
    with Said() as said:
        call = served.call(said)
        said.say(b"one")
        assert next(call) == b"one"
        call.cancel()
    assert list(served.call([b"another"])) == [b"another"]
    assert served.failures == []


def test_who_does_not_read_is_not_read_from(served: Served) -> None:
    unsent: list[int] = []
    served.handler = exchanging(lambda rpc, count: unsent.append(rpc.unsent))
    large = bytes(1 << 20)
    call = served.call([large] * 50)
    assert [next(call) for _ in range(50)] == [large] * 50
    assert unsent == [0] * 50, "what it is sent piles up"


def test_what_waits_to_be_sent_goes_before_the_answer_and_the_status_after_it(served: Served) -> None:
    async def many(rpc: Rpc) -> None:
        for number in range(100):
            rpc.send(bytes([number]) * 1000)
        rpc.send_and_receive(b"answer", lambda message: None)
        rpc.finish(grpc.StatusCode.ABORTED, "that is all")

    served.handler = many
    with Said() as said:
        call = served.call(said)
        received = [next(call) for _ in range(101)]
        assert received[:100] == [bytes([number]) * 1000 for number in range(100)]
        assert received[100] == b"answer"
        with pytest.raises(grpc.RpcError):
            next(call)
        assert ended(call) == (grpc.StatusCode.ABORTED, "that is all")


class Said:
    """Messages of a client that is heard, until the context ends."""

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def __enter__(self) -> "Said":
        return self

    def __exit__(self, *_: object) -> None:
        self._messages.put(None)

    def say(self, message: bytes) -> None:
        self._messages.put(message)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._messages.get, None)
