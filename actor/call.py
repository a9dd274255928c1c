"""One bidirectional gRPC call, driven by the thread that waits for it.

What is public in gRPC's Python passes each message through other threads: those of `grpc.aio`, or the
one that `grpc`'s own synchronous streams start. This is what the latter are made of: a completion queue,
asked by whoever waits, which takes a fifth of the CPU time (docs/decisions/0025-completion-queue.md). It
is in `grpc._cython`, which is not public; all of that which is used is used here.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc

from protos.errors import ConfigError

Status = tuple[grpc.StatusCode, str]

DRAIN_SECONDS = 1.0
"""How long the end of a call that was cancelled may take."""

_NO_FLAGS = 0
_CODES = {code.value[0]: code for code in grpc.StatusCode}

# Tags of what the completion queue reports.
_BEGUN: Final = "begun"
_SENT: Final = "sent"
_RECEIVED: Final = "received"
_HALF_CLOSED: Final = "half-closed"
_STATUS: Final = "status"
_KICKED: Final = "kicked"
_DRAINED: Final = "drained"


class Call:
    """One call in a connection of its own. Used by one thread, but for `kick`.

    What waits takes `on_kick`, which is called, in the thread that waits, after each `kick`; a kick that
    comes late meets the next who waits. What it raises ends the waiting, and leaves the call as it
    is. So does what a signal's handler raises; gRPC looks for signals every 0.2 s, or after the last of
    those that come faster.

    Args:
        target: HOST:PORT or unix:PATH.
        method: such as "/package.Service/Method".
        options: gRPC's channel arguments.
        credentials: for TLS; None for plain text.
        metadata: what the call brings along.

    Raises:
        ConfigError: this grpcio is none that this module knows.
    """

    def __init__(
        self,
        target: str,
        method: str,
        *,
        options: Sequence[tuple[str, Any]],
        credentials: grpc.ChannelCredentials | None,
        metadata: Sequence[tuple[str, str]],
    ) -> None:
        try:
            from grpc._cython import cygrpc  # type: ignore[attr-defined,unused-ignore]  # not public

            self._send_operation = cygrpc.SendMessageOperation
            self._receive_operation = cygrpc.ReceiveMessageOperation
            self._half_close_operation = cygrpc.SendCloseFromClientOperation
            self._cancelled = cygrpc.StatusCode.cancelled
            # Not that of `grpc.insecure_channel`, which waits for ever, where it is forgotten, for the
            # events of calls that nobody takes any more.
            tls = None if credentials is None else credentials._credentials  # type: ignore[attr-defined]
            self._channel = cygrpc.Channel(target.encode(), tuple(options), tls)
            begin = cygrpc.SendInitialMetadataOperation(tuple(metadata), _NO_FLAGS)
            status = cygrpc.ReceiveStatusOnClientOperation(_NO_FLAGS)
            answered = cygrpc.ReceiveInitialMetadataOperation(_NO_FLAGS)
            operations = (((begin, status), _STATUS), ((answered,), _BEGUN))
            self._call = self._channel.integrated_call(
                _NO_FLAGS, method.encode(), None, None, None, None, operations, None, None
            )
            self._next_event: Callable[[], Any] = self._channel.next_call_event
        except (ImportError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"grpcio {grpc.__version__}: expected gRPC's internals as they were from 1.74 to 1.85, "
                f"found others ({error}): install grpcio 1.74 to 1.85"
            ) from error
        self._status: Status | None = None
        self._answer: bytes | None = None
        self._receiving = False
        self._sending = False
        self._lost = False

    def send_and_receive(self, message: bytes, on_kick: Callable[[], None]) -> bytes | None:
        """Send `message` and wait for the next one from the other side.

        Returns:
            None where the call has ended; `status` says how.
        """
        # Asked for before it can be there, which saves gRPC a look at the socket. Apart from the
        # sending, or nothing else could be sent after a wait that was given up.
        self._receiving = self._operate(self._receive_operation(_NO_FLAGS), _RECEIVED)
        self._answer = None
        self.send(message, on_kick)
        while self._receiving:
            self._take(on_kick)
        return self._answer

    def send(self, message: bytes, on_kick: Callable[[], None]) -> None:
        """Send `message`, once the one before it is on its way. Nothing where the call has ended."""
        self._wait_until_sent(on_kick)
        # First, as Ctrl-C may come between the two: gRPC refuses a second message beside one.
        self._sending = True
        self._sending = self._operate(self._send_operation(message, _NO_FLAGS), _SENT)

    def half_close(self, on_kick: Callable[[], None]) -> None:
        """Say that nothing more will be sent."""
        self._wait_until_sent(on_kick)
        self._operate(self._half_close_operation(_NO_FLAGS), _HALF_CLOSED)

    def status(self, on_kick: Callable[[], None]) -> Status:
        """Wait for the end: its code, and what the other side, or gRPC, says of it."""
        while self._status is None:
            self._take(on_kick)
        return self._status

    def kick(self) -> None:
        """Wake who waits in this call, now or next. For signal handlers and other threads."""
        self._call.operate((), _KICKED)

    def cancel(self) -> None:
        """End the call, if it has not ended, and its connection; this stays until the process ends where
        Ctrl-C has cut off an event."""
        self._call.cancel(self._cancelled, "cancelled by the client")
        # gRPC closes a channel only after every event of its calls has been taken, and waits for ever
        # for one that was lost.
        give_up = time.monotonic() + DRAIN_SECONDS
        while self._call.operate((), _DRAINED):
            while (event := self._next_event()).tag is not _DRAINED:
                self._note(event, _ignore)
            if (self._lost and self._status is not None) or time.monotonic() > give_up:
                return
        self._channel.close(self._cancelled, "closed by the client")

    def _wait_until_sent(self, on_kick: Callable[[], None]) -> None:
        while self._sending:
            self._take(on_kick)

    def _operate(self, operation: Any, tag: str) -> bool:
        """Whether `tag` will be reported; not where the call has ended."""
        return bool(self._call.operate((operation,), tag))

    def _take(self, on_kick: Callable[[], None]) -> None:
        """Wait for one event."""
        try:
            event = self._next_event()
        except BaseException:
            # By a signal's handler, which meets the event on its way here more often than the waiting.
            self._lost = True
            raise
        self._note(event, on_kick)

    def _note(self, event: Any, on_kick: Callable[[], None]) -> None:
        tag = event.tag
        if tag is _RECEIVED:
            self._receiving = False
            self._answer = event.batch_operations[0].message()
        elif tag is _SENT:
            self._sending = False
        elif tag is _KICKED:
            on_kick()
        elif tag is _STATUS:
            operation = event.batch_operations[1]
            code = _CODES.get(operation.code(), grpc.StatusCode.UNKNOWN)
            self._status = code, operation.details() or "no details"


def _ignore() -> None:
    """What to do at a kick, where nothing can be cut short."""
