"""One gRPC stream to the learner."""

import logging
import re
from collections.abc import Callable
from functools import partial

import grpc

from actor.alert import send_alert
from actor.call import Call
from actor.waiting import Overdue, Waiting
from protos import inference_pb2 as pb
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

logger = logging.getLogger(__name__)

_METHOD = "/" + pb.DESCRIPTOR.services_by_name["Inference"].full_name + "/Act"

_CLOSE_SECONDS = 2.0

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
    """One gRPC stream. Its methods raise RequestError for whatever happens to it, and Interrupted where
    `waiting` says so; the latter leaves the stream as it is."""

    def __init__(
        self, call: Call, waiting: Waiting, send_alert: Callable[[], None] = lambda: None
    ) -> None:
        self._call = call
        self._waiting = waiting
        self._send_alert = send_alert
        waiting.wake = call.kick

    @classmethod
    def dial(cls, server: str, credentials: Credentials, waiting: Waiting) -> "Stream":
        """A stream in a connection of its own, by what the credentials' files hold now."""
        try:
            metadata = credentials.metadata()
            channel_credentials = credentials.for_channel(server)
        except ConfigError as error:
            # They were good when the client began: these are new files, half of which may be to come.
            raise NotServing(str(error)) from error
        call = Call(
            server, _METHOD, options=_OPTIONS, credentials=channel_credentials, metadata=metadata
        )
        return cls(call, waiting, partial(send_alert, server, credentials.tls_ca or ""))

    def open(self, opening: pb.Open, timeout_seconds: float) -> pb.Opened:
        return self._round_trip(pb.ClientMessage(open=opening), timeout_seconds).opened

    def exchange(self, step: pb.ClientMessage, timeout_seconds: float) -> pb.Actions:
        """The answer to a message that holds a step."""
        actions = self._round_trip(step, timeout_seconds).actions
        if actions.sequence != step.step.sequence:
            raise LearnerError(
                f"sequence: expected an answer to {step.step.sequence}, found {actions.sequence}"
            )
        return actions

    def close(self, error: str) -> None:
        """Say that the session is over, and wait for the learner to have heard it, even after
        `interrupt`."""
        self._waiting.begin(_CLOSE_SECONDS)
        on_kick = self._waiting.check_deadline
        try:
            # A step whose waiting was given up may still be on its way out: this goes after it.
            self._call.send(_bytes(pb.ClientMessage(close=pb.Close(error=error))), on_kick)
            self._call.half_close(on_kick)
            self._call.status(on_kick)
        except Overdue:
            logger.debug("the learner did not hear in time that the session is over")
        self.cancel()

    def cancel(self) -> None:
        self._call.cancel()

    def _round_trip(self, message: pb.ClientMessage, timeout_seconds: float) -> pb.ServerMessage:
        check = self._waiting.check
        self._waiting.begin(timeout_seconds)
        self._waiting.check_interrupted()
        try:
            answer = self._call.send_and_receive(_bytes(message), check)
            if answer is None:
                raise self._failure(*self._call.status(check))
        except Overdue:
            raise DeadlineExceeded(f"expected an answer within {timeout_seconds:g} s") from None
        return pb.ServerMessage.FromString(answer)

    def _failure(self, code: grpc.StatusCode, details: str) -> RequestError:
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


def _bytes(message: pb.ClientMessage) -> bytes:
    return message.SerializeToString()
