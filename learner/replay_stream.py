"""One stream of a replay: said again to a learner, and compared with what the recorded one said."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from learner.final_status import FinalStatus, Status
from learner.serving.recording import Entry, Kind, Opening, Recording
from protos import inference_pb2 as pb

logger = logging.getLogger(__name__)

METHOD = f"/{pb.DESCRIPTOR.services_by_name['Inference'].full_name}/Act"

REFUSALS = {
    status.value[0]: status.name
    for status in (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.INTERNAL,
    )
}
"""Statuses that a stream's own messages cause."""

NO_MESSAGE = b"\xff"
"""Stands for the bytes that were no ClientMessage."""

MAX_DIFFERENCES = 20
"""Differences that are told one by one."""


@dataclass
class Result:
    """What came of a replay."""

    streams: int = 0
    in_the_middle: int = 0
    """of them, that began in the middle"""
    steps: int = 0
    answers: int = 0
    resumed: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """streams that the learner ended, by its status"""
    differences: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def differ(self, stream: int, expected: str, found: str) -> None:
        """The learner did something else than the recorded one."""
        words = f"stream {stream}: expected {expected}, found {found}"
        self.differences.append(words)
        if len(self.differences) <= MAX_DIFFERENCES:
            logger.warning("%s", words)

    def summary(self, recording: Recording) -> dict[str, Any]:
        return {
            "streams": self.streams,
            "streams_in_the_middle": self.in_the_middle,
            "steps": self.steps,
            "answers": self.answers,
            "sessions_resumed": self.resumed,
            "refused": dict(self.refused),
            "differences": len(self.differences),
            "first_differences": self.differences[:MAX_DIFFERENCES],
            "gaps": recording.gaps,
            "damage": recording.damage,
            "seconds": round(self.seconds, 3),
        }


class Sessions:
    """The recorded sessions, and which of the learner's stands for each."""

    def __init__(self, recording: Iterable[Entry]) -> None:
        self._tokens: dict[bytes, bytes] = {}
        self._carriers: dict[bytes, int] = {}
        self._resumptions: Counter[bytes] = Counter()
        self._fresh: set[int] = set()
        opened: set[int] = set()
        asked: dict[int, bytes] = {}
        for entry in recording:
            if entry.kind is Kind.RECEIVED and entry.stream not in asked:
                asked[entry.stream] = pb.ClientMessage.FromString(entry.body).open.resume_token
            elif entry.kind is Kind.CONTINUED:
                opening = Opening.decode(entry.body)
                asked[entry.stream] = pb.ClientMessage.FromString(opening.received).open.resume_token
                opened |= {entry.stream} if opening.sent else set()
            elif entry.kind is Kind.SENT and entry.stream not in opened:
                opened.add(entry.stream)
                answer = pb.ServerMessage.FromString(entry.body).opened
                if answer.resumed:
                    self._resumptions[asked[entry.stream]] += 1
                else:
                    self._fresh.add(entry.stream)

    def token_for(self, stream: int, recorded: bytes) -> bytes:
        """What to resume in place of `recorded`; empty if nothing was resumed, or cannot be."""
        return b"" if stream in self._fresh else self._tokens.get(recorded, b"")

    def opened(self, stream: int, recorded: pb.Opened, found: pb.Opened, in_the_middle: bool) -> None:
        """The learner has answered an Open."""
        token = recorded.session_token
        if recorded.resumed and not in_the_middle:
            self._resumptions[token] -= 1
        self._tokens[token] = found.session_token
        self._carriers[token] = stream

    def ends_with(self, stream: int, token: bytes) -> bool:
        """Whether a session's lease is of no use once the stream has ended."""
        return self._carriers.get(token) == stream and self._resumptions[token] <= 0

    def forget(self) -> None:
        """The leases so far cannot be gone on with: something is missing."""
        self._tokens.clear()
        self._carriers.clear()


class Feed:
    """One stream to the learner, in a recorded one's place."""

    def __init__(
        self,
        stream: int,
        channel: grpc.aio.Channel,
        metadata: Sequence[tuple[str, str]],
        seconds: float,
        sessions: Sessions,
        result: Result,
    ) -> None:
        self._stream = stream
        self._seconds = seconds
        self._sessions = sessions
        self._result = result
        self._channel = channel
        self._call: Any = self._channel.stream_stream(
            METHOD, response_deserializer=pb.ServerMessage.FromString
        )(metadata=metadata)
        self._token = b""
        self._opened = False
        self._closed = False
        self._over = False
        """Whether nothing more can be compared."""
        self._early: dict[int, pb.Actions] = {}
        """Answers that came before others that are awaited, by sequence."""
        self._last_sequence = 0
        """of the step that was sent last; 0 if something else was sent since"""
        self._asks_to_resume = False
        self._status = FinalStatus(self._call, (grpc.StatusCode.UNKNOWN, ""))

    async def send(self, data: bytes) -> None:
        """Say what the recorded client said."""
        message = pb.ClientMessage.FromString(data)
        kind = message.WhichOneof("kind")
        self._last_sequence = 0
        if kind == "open" and message.open.resume_token:
            token = self._sessions.token_for(self._stream, message.open.resume_token)
            message.open.resume_token = token
            self._asks_to_resume = token != b""
            data = message.SerializeToString()
        elif kind == "step":
            self._result.steps += 1
            self._last_sequence = message.step.sequence
        elif kind == "close":
            self._closed = True
        await self._write(data)

    async def send_no_message(self) -> None:
        """Say something that nobody understands, as the recorded client did."""
        self._last_sequence = 0
        await self._write(NO_MESSAGE)

    async def expect(self, data: bytes, *, in_the_middle: bool = False) -> None:
        """Await what the recorded learner said."""
        expected = pb.ServerMessage.FromString(data)
        if self._over:
            return
        if expected.WhichOneof("kind") == "opened":
            await self._expect_opened(expected.opened, in_the_middle)
        elif (found := await self._answer(expected.actions.sequence)) is not None:
            self._result.answers += 1
            if len(found.action) != len(expected.actions.action):
                size = len(expected.actions.action)
                self._differ(
                    f"actions of {size} bytes for step {found.sequence}", f"{len(found.action)} bytes"
                )

    async def end(self, code: int, details: str) -> None:
        """End as the recorded stream did."""
        if self._over:
            await self.cancel()
        elif code in REFUSALS:
            await self._expect_refusal(f"{REFUSALS[code]}: {details}")
            await self.cancel()
        else:
            for_good = self._sessions.ends_with(self._stream, self._token)
            await self.leave(for_good, politely=code == 0)

    async def leave(self, for_good: bool, *, politely: bool = False) -> None:
        """End the stream from this side.

        Args:
            for_good: release the lease.
            politely: let the learner end the stream, as after a Close, instead of breaking it off.
        """
        if not self._over and (for_good or politely):
            if for_good and self._opened and not self._closed:
                await self._write(pb.ClientMessage(close=pb.Close()).SerializeToString())
            await self._finish(politely)
        await self.cancel()

    async def cancel(self) -> None:
        self._call.cancel()
        await self._channel.close()

    # What the learner says ----------------------------------------------------------------------

    async def _expect_opened(self, expected: pb.Opened, in_the_middle: bool) -> None:
        message = await self._read("Opened")
        if message is None:
            return
        found = message.opened
        if found.resumed != self._asks_to_resume:
            self._differ("the session to be resumed", "a fresh lease")
        if len(found.slots) != len(expected.slots):
            self._differ(f"{len(expected.slots)} slots", f"{len(found.slots)}")
        self._opened = True
        self._token = expected.session_token
        self._result.resumed += found.resumed
        self._sessions.opened(self._stream, expected, found, in_the_middle)

    async def _answer(self, sequence: int) -> pb.Actions | None:
        """The answer to that step; None if there is none, which is told."""
        while sequence not in self._early:
            message = await self._read(f"actions for step {sequence}")
            if message is None:
                return None
            self._early[message.actions.sequence] = message.actions
        return self._early.pop(sequence)

    async def _expect_refusal(self, expected: str) -> None:
        """Await the stream's end with this status and details, past answers that come before it."""
        while (message := await self._next(expected)) is not None:
            answers_last = self._last_sequence and message.actions.sequence == self._last_sequence
            if answers_last or message.WhichOneof("kind") == "opened":
                self._differ(expected, "that it was accepted")
                return
        status = await self._end()
        if status is not None and status[0].name != expected.partition(":")[0]:
            self._differ(expected, _words(status))

    async def _finish(self, politely: bool) -> None:
        """Await the stream's end after a last word."""
        try:
            await self._call.done_writing()
        except (grpc.RpcError, asyncio.InvalidStateError):
            logger.debug("stream %d was over already", self._stream)
        while await self._next("the stream's end") is not None:
            pass
        status = await self._end()
        if status is not None and (politely or status[0].value[0] in REFUSALS):
            code = status[0]
            if code is not grpc.StatusCode.OK:
                self._differ("OK", _words(status))

    async def _read(self, expected: str) -> pb.ServerMessage | None:
        """The learner's next message; None if there is none, which is told."""
        message = await self._next(expected)
        if message is None and (status := await self._end()) is not None:
            self._differ(expected, _words(status))
        return message

    async def _next(self, expected: str) -> pb.ServerMessage | None:
        """The learner's next message; None at the stream's end, or if none comes, which is told."""
        if self._over:
            return None
        try:
            async with asyncio.timeout(self._seconds):
                message: object = await self._call.read()
        except TimeoutError:
            self._differ(expected, f"nothing within {self._seconds:g} s")
            self._over = True
            return None
        except (grpc.RpcError, asyncio.InvalidStateError):
            return None
        return message if isinstance(message, pb.ServerMessage) else None

    async def _end(self) -> Status | None:
        """How the learner ended the stream; None if that is of no interest any more."""
        if self._over:
            return None
        self._over = True
        await self._call.code()
        code = self._status.value[0]
        if code is not grpc.StatusCode.OK:
            self._result.refused[code.name] += 1
        return self._status.value

    def _differ(self, expected: str, found: str) -> None:
        self._result.differ(self._stream, expected, found)

    async def _write(self, data: bytes) -> None:
        if self._over or self._call.done():
            return  # What it ended with is found when something is awaited.
        try:
            async with asyncio.timeout(self._seconds):
                await self._call.write(data)
        except TimeoutError:
            self._differ("the learner to read", f"that it did not within {self._seconds:g} s")
            self._over = True
        except (grpc.RpcError, asyncio.InvalidStateError):
            logger.debug("stream %d ended while something was sent", self._stream)


def _words(status: Status) -> str:
    code, details = status
    return f"{code.name}: {details}" if details else code.name
