"""One call of a client, as its server sees it: messages of bytes in, messages of bytes out, a status."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from grpc._cython import cygrpc

_NO_FLAGS = 0


class Rpc:
    """A client's call. Used on its `CompletionLoop` alone.

    Args:
        event: of gRPC, that brought the call.
        on_cancel: called when the client, or the network, breaks the call off.
    """

    def __init__(self, event: Any, on_cancel: Callable[["Rpc"], None]) -> None:
        self.method: str = event.call_details.method.decode("ascii", "replace")
        self.metadata: Mapping[str, str | bytes] = dict(event.invocation_metadata)
        self._call = event.call
        self._on_cancel = on_cancel
        self._take: Callable[[bytes | None], None] = _ignore
        self._unsent: deque[bytes] = deque()
        self._begun = False
        self._sending = False
        self._status: tuple[grpc.StatusCode, str] | None = None
        self._statused = False
        self._broken = False
        self._asks = False
        """for the next message, with the last of those that wait to be sent"""
        self._exchanging = False
        """by one operation that sends, and then receives"""
        self._sent: asyncio.Future[None] | None = None
        self._start(self._ended, cygrpc.ReceiveCloseOnServerOperation(_NO_FLAGS))

    def peer(self) -> str:
        """Where the client is, in gRPC's words."""
        return str(self._call.peer().decode())

    def receive(self, take: Callable[[bytes | None], None]) -> None:
        """Hand the next message to `take`: None if there will be none, because the client has said all
        or the call is broken. One at a time."""
        self._take = take
        self._start(self._received, cygrpc.ReceiveMessageOperation(_NO_FLAGS))

    async def read(self) -> bytes | None:
        """The next message; None as for `receive`."""
        message: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self.receive(lambda data: None if message.done() else message.set_result(data))
        return await message

    def send(self, message: bytes) -> None:
        """Send after all that was sent before; never waits. Dropped once the call is over."""
        if self._status is not None or self._broken:
            return
        if self._sending:
            self._unsent.append(message)
        else:
            self._send(message)

    def send_and_receive(self, message: bytes, take: Callable[[bytes | None], None]) -> None:
        """`send` and `receive`, where nothing else is sent (but a status) until the next message has
        come. That takes gRPC one event instead of two."""
        if self._status is not None or self._broken:
            self.receive(take)
            return
        self._take = take
        self._asks = True
        self.send(message)

    @property
    def unsent(self) -> int:
        """Messages that wait for the client to read those before."""
        return len(self._unsent)

    async def write(self, message: bytes) -> None:
        """Send, and wait until the client's window has taken it in. One at a time."""
        self.send(message)
        if self._sending:
            self._sent = asyncio.get_running_loop().create_future()
            await self._sent

    def finish(self, status: grpc.StatusCode, details: str = "") -> None:
        """End the call once all is sent. Only the first time counts."""
        if self._status is None:
            self._status = (status, details)
            self._send_status()

    def _start(self, done: Callable[[Any], None], *operations: object) -> None:
        self._call.start_server_batch(operations, done)

    def _received(self, event: Any) -> None:
        self._take(event.batch_operations[0].message())

    def _exchanged(self, event: Any) -> None:
        self._exchanging = False
        self._message_sent(event)
        self._take(event.batch_operations[-1].message())

    def _send(self, message: bytes) -> None:
        self._sending = True
        operations = [cygrpc.SendMessageOperation(message, _NO_FLAGS)]
        if not self._begun:
            self._begun = True
            operations.insert(0, cygrpc.SendInitialMetadataOperation(None, _NO_FLAGS))
        if self._asks and not self._unsent:
            self._asks, self._exchanging = False, True
            self._start(self._exchanged, *operations, cygrpc.ReceiveMessageOperation(_NO_FLAGS))
            self._send_status()  # Which does not wait for what comes.
        else:
            self._start(self._message_sent, *operations)

    def _message_sent(self, event: object) -> None:
        self._sending = False
        if self._unsent and not self._broken:
            self._send(self._unsent.popleft())
            return
        if self._sent is not None and not self._sent.done():
            self._sent.set_result(None)
        self._send_status()

    def _send_status(self) -> None:
        sending = self._sending and not self._exchanging
        if self._status is None or sending or self._statused or self._broken:
            return
        self._statused = True
        code, details = self._status
        operation = cygrpc.SendStatusFromServerOperation(
            None, code.value[0], details.encode(), _NO_FLAGS
        )
        if self._begun:
            self._start(_ignore, operation)
        else:
            self._start(_ignore, cygrpc.SendInitialMetadataOperation(None, _NO_FLAGS), operation)

    def _ended(self, event: Any) -> None:
        if event.batch_operations[0].cancelled():
            self._broken = True
            self._unsent.clear()
            self._on_cancel(self)


def _ignore(event: object) -> None:
    """Nothing follows."""
