"""The streams: sessions open here, steps go to the batcher, actions come back."""

import asyncio
import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from learner.serving.batcher import Request
from learner.serving.sessions import Session
from learner.serving.slots import Slots
from protos import PROTOCOL_VERSION, inference_pb2_grpc, specs
from protos import inference_pb2 as pb
from protos.errors import InvalidRequest, LearnerError, NotServing, RequestError, to_status
from protos.specs import EnvironmentSpec

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[pb.ClientMessage, pb.ServerMessage]

MAX_MESSAGE_BYTES = 256 << 20
"""Largest message that the server takes in."""

MAX_STEP_BYTES = MAX_MESSAGE_BYTES - (1 << 20)
"""Most bytes of observation in one; the rest is room for all else."""

MAX_CLIENT_NAME = 200
MAX_CLOSE_ERROR = 500
MAX_DETAILS = 4000
"""Most characters of an error that travel: of metadata beyond 8 KB gRPC makes RESOURCE_EXHAUSTED."""

Outbox = asyncio.Queue[pb.ServerMessage | RequestError | None]
"""What a stream sends next; an error or None ends it."""


@dataclass(frozen=True)
class Lane:
    """Where the sessions of one mode go: all that the service knows of the rest of the learner."""

    spec: EnvironmentSpec
    slots: Slots
    max_rows: int
    submit: Callable[[Request], None]
    version: Callable[[], int]
    drop: Callable[[np.ndarray], None]
    """called with a lease's slots once it has ended and all its steps are answered"""


class InferenceService(inference_pb2_grpc.InferenceServicer):
    """Serves sessions of any number of clients on one event loop.

    Until `open_lanes` is called, clients that open wait. Everything but `statistics` runs on the
    event loop, so that no state here needs a lock; inference threads hand their answers over through
    a deque whose operations are atomic.
    """

    def __init__(
        self,
        *,
        lease_seconds: float,
        offer_spec: Callable[[EnvironmentSpec], None] = lambda spec: None,
        open_timeout_seconds: float = 30.0,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._lease_seconds = lease_seconds
        self._offer_spec = offer_spec
        self._open_timeout_seconds = open_timeout_seconds
        self._lanes: Mapping[int, Lane] = {}
        self._ready = asyncio.Event()
        self._ending: RequestError | None = None
        self._sessions: dict[bytes, Session] = {}
        self._lane_of: dict[bytes, Lane] = {}
        self._outboxes: dict[bytes, Outbox] = {}
        self._expiries: dict[bytes, asyncio.TimerHandle] = {}
        self._answers: deque[tuple[Session, int, np.ndarray, int]] = deque()
        self._wakes = False
        self._counts: Counter[str] = Counter()
        self._environments = 0
        self._seconds_waiting = 0.0
        self._seconds_acting = 0.0
        self._asked: dict[tuple[bytes, int], float] = {}
        self._answered_at: dict[bytes, float] = {}

    def open_lanes(self, lanes: Mapping[int, Lane]) -> None:
        """Serve the modes (pb.TRAIN, pb.EVALUATE) of `lanes` from now on."""
        self._lanes = lanes
        self._ready.set()

    def end_streams(self, reason: RequestError) -> None:
        """End every stream, and turn away new ones, with `reason`."""
        self._ending = reason
        self._ready.set()
        for outbox in self._outboxes.values():
            outbox.put_nowait(reason)

    def statistics(self) -> Mapping[str, float]:
        """Counts since the start, and what is open now. Any thread may ask."""
        return {
            "sessions": len(self._sessions),
            "streams": len(self._outboxes),
            "environments": self._environments,
            "actor_seconds_waiting": self._seconds_waiting,
            "actor_seconds_acting": self._seconds_acting,
            **{f"count_{name}": count for name, count in self._counts.copy().items()},
        }

    async def Act(  # noqa: N802 - the RPC's name
        self, request_iterator: object, context: Context
    ) -> None:
        """One stream: open, then steps in and actions out, until either side ends it."""
        client = "a client"
        try:
            opening = await self._read_open(context)
            client = _printable(opening.client) or context.peer()
            try:
                session, opened = await self._open(opening, client)
            except Exception as error:  # noqa: BLE001 - whatever it is, only this stream ends
                raise _request_error(error, client) from None
            await self._carry(session, opened, context)
        except RequestError as error:
            self._counts[f"errors_{to_status(error).name.lower()}"] += 1
            level = logging.INFO if error is self._ending else logging.WARNING
            logger.log(level, "%s: %s: %s", client, to_status(error).name, error)
            await context.abort(to_status(error), _details(error))

    # Opening ------------------------------------------------------------------------------------

    async def _read_open(self, context: Context) -> pb.Open:
        try:
            message = await asyncio.wait_for(_read(context), self._open_timeout_seconds)
        except TimeoutError:
            raise InvalidRequest(
                f"expected Open within {self._open_timeout_seconds:g} s, found nothing"
            ) from None
        kind = None if message is None else message.WhichOneof("kind")
        if message is None or kind != "open":
            raise InvalidRequest(f"expected Open as the stream's first message, found {kind}")
        opening: pb.Open = message.open
        if opening.protocol_version != PROTOCOL_VERSION:
            raise InvalidRequest(
                f"protocol_version: expected {PROTOCOL_VERSION}, found {opening.protocol_version}"
            )
        if opening.num_environments < 1:
            raise InvalidRequest("num_environments: expected at least 1, found 0")
        if len(opening.client) > MAX_CLIENT_NAME:
            raise InvalidRequest(
                f"client: expected at most {MAX_CLIENT_NAME} characters, found {len(opening.client)}"
            )
        if opening.mode not in (pb.TRAIN, pb.EVALUATE):
            raise InvalidRequest(f"mode: expected TRAIN or EVALUATE, found {opening.mode}")
        return opening

    async def _open(self, opening: pb.Open, client: str) -> tuple[Session, pb.Opened]:
        spec = specs.from_proto(opening.spec)
        await self._until_ready(spec)
        lane = self._lanes.get(opening.mode)
        if lane is None:
            mode = pb.Mode.Name(opening.mode)
            modes = " or ".join(pb.Mode.Name(mode) for mode in self._lanes)
            raise InvalidRequest(f"mode: expected {modes} (what this learner serves), found {mode}")
        if spec != lane.spec:
            raise InvalidRequest(f"spec: expected {lane.spec}, found {spec}")
        session = self._find(opening, lane)
        resumed = session is not None
        if session is None:
            session = self._begin(opening, lane, client)
        self._counts["sessions_resumed" if resumed else "sessions_begun"] += 1
        logger.info(
            "%s: %s %d environments", client, "resumes" if resumed else "brings", len(session.slots)
        )
        return session, pb.Opened(
            session_token=session.token,
            resumed=resumed,
            lease_ttl_ms=round(self._lease_seconds * 1000),
            slots=session.slots.tolist(),
            policy_version=lane.version(),
        )

    async def _until_ready(self, spec: EnvironmentSpec) -> None:
        if not self._ready.is_set():
            self._offer_spec(spec)
            await self._ready.wait()
        if self._ending is not None:
            raise self._ending.with_traceback(None)

    def _find(self, opening: pb.Open, lane: Lane) -> Session | None:
        session = self._sessions.get(opening.resume_token)
        if session is None:
            return None
        if self._lane_of[session.token] is not lane or len(session.slots) != opening.num_environments:
            raise InvalidRequest(
                f"resume_token: expected the mode and {len(session.slots)} environments of the session "
                f"that it names, found others"
            )
        return session

    def _begin(self, opening: pb.Open, lane: Lane, client: str) -> Session:
        if opening.num_environments > lane.max_rows:
            raise InvalidRequest(
                f"num_environments: expected at most {lane.max_rows} in a session, found "
                f"{opening.num_environments}: open several sessions, or raise --inference-batch-size"
            )
        row = sum(leaf.num_bytes for leaf in lane.spec.observation)
        if opening.num_environments * row > MAX_STEP_BYTES:
            raise InvalidRequest(
                f"num_environments: expected at most {MAX_STEP_BYTES // row} in a session (observations "
                f"of {row} bytes in a message of {MAX_STEP_BYTES}), found {opening.num_environments}: "
                "open several sessions"
            )
        session = Session(
            token=secrets.token_bytes(16),
            client=client,
            slots=lane.slots.lease(opening.num_environments),
            spec=lane.spec,
            reply=self._post,
        )
        self._sessions[session.token] = session
        self._lane_of[session.token] = lane
        self._environments += len(session.slots)
        return session

    # The stream ---------------------------------------------------------------------------------

    async def _carry(self, session: Session, opened: pb.Opened, context: Context) -> None:
        """Carry a session on this stream. What the reader meets reaches the writer by the outbox."""
        outbox: Outbox = asyncio.Queue()
        self._attach(session, outbox)
        reader = asyncio.create_task(self._read(session, context, outbox))
        try:
            await context.write(pb.ServerMessage(opened=opened))
            while (item := await outbox.get()) is not None:
                if isinstance(item, RequestError):
                    # One error may end many streams: their tracebacks would pile up in it.
                    raise item.with_traceback(None)
                await context.write(item)
        finally:
            reader.cancel()
            self._detach(session, outbox)

    async def _read(self, session: Session, context: Context, outbox: Outbox) -> None:
        submit = self._lane_of[session.token].submit
        try:
            while (message := await _read(context)) is not None:
                kind = message.WhichOneof("kind")
                if kind == "step":
                    if (request := session.accept(message.step)) is not None:
                        self._note_asked(session, message.step.sequence)
                        submit(request)
                elif kind == "close":
                    if message.close.error:
                        error = _printable(message.close.error[:MAX_CLOSE_ERROR])
                        logger.warning("%s: its environment failed: %s", session.client, error)
                    self._end(session)
                    break
                else:
                    raise InvalidRequest(f"expected Step or Close after Open, found {kind}")
        except Exception as error:  # noqa: BLE001 - whatever it is, only this stream ends
            self._end(session)
            outbox.put_nowait(_request_error(error, session.client))
        else:
            # After a half-close without Close the lease lives on: a broken connection looks the same.
            outbox.put_nowait(None)

    def _attach(self, session: Session, outbox: Outbox) -> None:
        if (expiry := self._expiries.pop(session.token, None)) is not None:
            expiry.cancel()
        if (former := self._outboxes.get(session.token)) is not None:
            former.put_nowait(NotServing("the session goes on in another stream"))
        self._outboxes[session.token] = outbox
        session.attach(outbox.put_nowait)

    def _detach(self, session: Session, outbox: Outbox) -> None:
        """The stream is over; the lease lives on for a while, unless it has ended or moved on."""
        if self._outboxes.get(session.token) is not outbox:
            return
        del self._outboxes[session.token]
        session.detach()
        if not session.ended and self._ending is None:
            logger.info("%s: stream lost; its lease waits %g s", session.client, self._lease_seconds)
            self._expiries[session.token] = self._loop.call_later(
                self._lease_seconds, self._expire, session
            )

    def _expire(self, session: Session) -> None:
        self._counts["leases_expired"] += 1
        logger.warning("%s: lease expired", session.client)
        self._end(session)

    def _end(self, session: Session) -> None:
        """End the lease. Its slots are free once no inference batch holds a step of them."""
        if session.ended:
            return
        session.ended = True
        self._expiries.pop(session.token, None)
        self._answered_at.pop(session.token, None)
        del self._sessions[session.token]
        if session.idle:
            self._release(session)

    def _release(self, session: Session) -> None:
        lane = self._lane_of.pop(session.token)
        lane.drop(session.slots)
        lane.slots.release(session.slots)
        self._environments -= len(session.slots)

    # Answers ------------------------------------------------------------------------------------

    def _post(self, session: Session, sequence: int, actions: np.ndarray, version: int) -> None:
        """Bring an answer to the event loop. Called by inference threads."""
        self._answers.append((session, sequence, actions, version))
        # One wake-up drains all that has come by then, so the answers of a batch share one. The flag
        # falls before the draining begins: who still saw it up is drained.
        if not self._wakes:
            self._wakes = True
            with suppress(RuntimeError):  # The loop has ended, and every stream before it.
                self._loop.call_soon_threadsafe(self._deliver_answers)

    def _deliver_answers(self) -> None:
        self._wakes = False
        while self._answers:
            session, sequence, actions, version = self._answers.popleft()
            session.answer(sequence, actions, version)
            self._note_answered(session, sequence)
            if session.ended and session.idle:
                self._release(session)

    def _note_asked(self, session: Session, sequence: int) -> None:
        now = time.monotonic()
        self._asked[session.token, sequence] = now
        self._seconds_acting += now - self._answered_at.get(session.token, now)

    def _note_answered(self, session: Session, sequence: int) -> None:
        now = time.monotonic()
        self._seconds_waiting += now - self._asked.pop((session.token, sequence), now)
        if not session.ended:
            self._answered_at[session.token] = now


async def _read(context: Context) -> pb.ClientMessage | None:
    """The stream's next message; None at its end."""
    try:
        message: object = await context.read()
    except DecodeError:
        raise InvalidRequest("expected a ClientMessage, found bytes that are none") from None
    return message if isinstance(message, pb.ClientMessage) else None


def _printable(text: str) -> str:
    """A client's words for the log, in one line whatever is in them."""
    return "".join(c if c.isprintable() else " " for c in text)


def _request_error(error: Exception, client: str) -> RequestError:
    """What a client is told of `error`; the log has what no client causes."""
    if isinstance(error, RequestError):
        return error
    logger.error("%s: unexpected failure in its stream", client, exc_info=error)
    return LearnerError(f"{type(error).__name__} in the learner; see its log")


def _details(error: RequestError) -> str:
    text = str(error)
    if len(text) <= MAX_DETAILS // 5:
        return text
    # What is not ASCII would travel in up to 12 characters each.
    text = text.encode("ascii", "backslashreplace").decode()
    return text if len(text) <= MAX_DETAILS else text[:MAX_DETAILS] + "... (the learner's log has all)"
