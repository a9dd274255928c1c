"""One gRPC stream to the learner, as coroutines."""

import asyncio
import logging
import re
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import grpc

from actor.alert import send_alert
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc
from protos.credentials import Credentials
from protos.errors import (
    ConfigError,
    DeadlineExceeded,
    LearnerError,
    NotServing,
    RequestError,
    Unauthenticated,
    from_status,
)
from protos.final_status import FinalStatus

logger = logging.getLogger(__name__)

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Keepalive finds a learner that is gone without a word within 20 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Of every ping, gRPC's own among them: 60 s unless said, and the keepalive would wait for it.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Each attempt dials anew: a shared connection would bring its own, slower, backoff.
    ("grpc.use_local_subchannel_pool", 1),
)

# Statuses of a connection that broke, whoever broke it; the session may go on in another stream.
_BROKEN = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN})

# What gRPC's details say of TLS that failed, on this side.
_DISTRUSTED = re.compile(r"CERTIFICATE_VERIFY_FAILED: (.*?)(?:: OK)?$", re.DOTALL)
_MISNAMED = "Hostname Verification Check failed"
_NO_TLS = "WRONG_VERSION_NUMBER"
_CLOSED = re.compile(r"failed to connect .*(Socket closed|Connection reset|Broken pipe)", re.DOTALL)
_HINT = (
    " (this is also what a TLS port says to plain text, or to a client without a certificate it trusts)"
)


class Stream:
    """One gRPC stream. Its methods raise RequestError for whatever happens to it."""

    def __init__(
        self, channel: grpc.aio.Channel, call: Any, send_alert: Callable[[], None] = lambda: None
    ) -> None:
        self._channel = channel
        self._call = call
        self._send_alert = send_alert
        # A step whose waiting Ctrl-C has ended may still be on its way out when Close is to follow, and
        # gRPC refuses a second write beside the first.
        self._writing = asyncio.Lock()
        self._status = FinalStatus(call, (grpc.StatusCode.UNAVAILABLE, "the stream has ended"))

    @classmethod
    async def dial(cls, server: str, credentials: Credentials) -> "Stream":
        """A stream in a connection of its own, by what the credentials' files hold now."""
        try:
            metadata = credentials.metadata()
            channel = credentials.channel(server, _OPTIONS)
        except ConfigError as error:
            # They were good when the client began: these are new files, half of which may be to come.
            raise NotServing(str(error)) from error
        stub = inference_pb2_grpc.InferenceStub(channel)
        alert = partial(send_alert, server, credentials.tls_ca or "")
        return cls(channel, stub.Act(metadata=metadata), alert)

    async def open(self, opening: pb.Open, timeout_seconds: float) -> pb.Opened:
        message = await self._round_trip(pb.ClientMessage(open=opening), timeout_seconds)
        return message.opened

    async def exchange(self, step: pb.Step, timeout_seconds: float) -> pb.Actions:
        message = await self._round_trip(pb.ClientMessage(step=step), timeout_seconds)
        if message.actions.sequence != step.sequence:
            raise LearnerError(
                f"sequence: expected an answer to {step.sequence}, found {message.actions.sequence}"
            )
        return message.actions

    async def close(self, error: str) -> None:
        """Say that the session is over, and wait for the learner to have heard it."""
        try:
            async with asyncio.timeout(2.0):
                await self._write(pb.ClientMessage(close=pb.Close(error=error)))
                await self._call.done_writing()
                await self._call.code()
        except (TimeoutError, grpc.RpcError, asyncio.InvalidStateError):
            logger.debug("the stream broke before the session was closed")
        await self.cancel()

    async def cancel(self) -> None:
        self._call.cancel()
        await self._channel.close()

    async def _round_trip(self, message: pb.ClientMessage, timeout_seconds: float) -> pb.ServerMessage:
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._write(message)
                answer = await self._call.read()
        except TimeoutError:
            raise DeadlineExceeded(f"expected an answer within {timeout_seconds:g} s") from None
        except (grpc.RpcError, asyncio.InvalidStateError):
            raise await self._failure() from None
        if answer is grpc.aio.EOF:
            raise await self._failure()
        return cast(pb.ServerMessage, answer)

    async def _write(self, message: pb.ClientMessage) -> None:
        async with self._writing:
            await self._call.write(message)

    async def _failure(self) -> RequestError:
        await self._call.code()
        code, details = self._status.value
        if (distrusted := _DISTRUSTED.search(details)) or _MISNAMED in details:
            self._send_alert()
            reason = distrusted[1].lower() if distrusted else "it has another name"
            return Unauthenticated(
                f"the learner's certificate is not trusted ({reason}): compare --tls-ca and the name in "
                "--server with the learner's --tls-cert"
            )
        if _NO_TLS in details:
            return Unauthenticated(
                "the learner speaks plain text, not TLS: leave out --tls-ca, or fix it"
            )
        if code in _BROKEN or code is grpc.StatusCode.OK:
            return NotServing(details + (_HINT if _CLOSED.search(details) else ""))
        return from_status(code, details)
