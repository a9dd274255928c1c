"""The streams: sessions open here, steps go to the batcher, actions come back."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping

import grpc
from google.protobuf.message import DecodeError

from learner.flags import LeaseEnd
from learner.serving.leases import Lane, Lease, Leases, Outbox
from learner.serving.pace import Pace
from learner.serving.recorder import NoRecorder, Recorder, StreamRecord
from learner.serving.sparing import SparingLog
from learner.telemetry.logs import printable
from learner.telemetry.report import SessionReport
from protos import PROTOCOL_MINOR, PROTOCOL_VERSION, inference_pb2_grpc, specs
from protos import inference_pb2 as pb
from protos.errors import InvalidRequest, LearnerError, NoCapacity, RequestError, to_status
from protos.specs import EnvironmentSpec

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[pb.ClientMessage, pb.ServerMessage]

MAX_MESSAGE_BYTES = 256 << 20
"""Largest message that the server takes in."""

MAX_STEP_BYTES = MAX_MESSAGE_BYTES - (1 << 20)
"""Most bytes of observation in one; the rest is room for all else."""

MAX_UNOPENED_STREAMS = 1000
"""Streams at once that have not said what they want yet: more are turned away."""

MAX_CLIENT_NAME = 200
MAX_CLIENT_VERSION = 100
MAX_CLOSE_ERROR = 500
MAX_DETAILS = 4000
"""Most characters of an error that travel: of metadata beyond 8 KB gRPC makes RESOURCE_EXHAUSTED."""


class InferenceService(inference_pb2_grpc.InferenceServicer):
    """Serves sessions of any number of clients on one event loop.

    Until `open_lanes` is called, clients that open wait. Everything but `statistics` and `sessions`
    runs on the event loop, so that no state here needs a lock.
    """

    def __init__(
        self,
        *,
        lease_seconds: float,
        offer_spec: Callable[[EnvironmentSpec], None] = lambda spec: None,
        on_failure: Callable[[BaseException], None] = lambda error: None,
        open_timeout_seconds: float = 30.0,
        max_message_rate: int = 0,
        recorder: Recorder | None = None,
    ) -> None:
        self._leases = Leases(lease_seconds, on_failure)
        self._offer_spec = offer_spec
        self._open_timeout_seconds = open_timeout_seconds
        self._max_message_rate = max_message_rate
        self._recorder = recorder or NoRecorder()
        self._unopened = 0
        self._lanes: Mapping[int, Lane] = {}
        self._ready = asyncio.Event()
        self._ending: RequestError | None = None
        self._errors: Counter[str] = Counter()
        self._log = SparingLog(logger)

    def open_lanes(self, lanes: Mapping[int, Lane]) -> None:
        """Serve the modes (pb.TRAIN, pb.EVALUATE) of `lanes` from now on."""
        self._lanes = lanes
        self._ready.set()

    def end_streams(self, reason: RequestError) -> None:
        """End every stream, and turn away new ones, with `reason`."""
        self._ending = reason
        self._ready.set()
        self._leases.end_streams(reason)

    def sessions(self) -> list[SessionReport]:
        """All sessions, oldest first. Any thread may ask."""
        return self._leases.sessions()

    def statistics(self) -> Mapping[str, float]:
        """Counts since the start, and what is open now. Any thread may ask."""
        errors = {f"count_errors_{name}": count for name, count in self._errors.copy().items()}
        return {**self._leases.statistics(), **errors}

    async def Act(  # noqa: N802 - the RPC's name
        self, request_iterator: object, context: Context
    ) -> None:
        """One stream: open, then steps in and actions out, until either side ends it."""
        client = "a client"
        record = self._recorder.begin()
        try:
            opening = await self._read_open_of_few(context, record)
            client = printable(opening.client) or context.peer()
            try:
                lease, opened = await self._open(opening, client)
            except Exception as error:  # noqa: BLE001 - whatever it is, only this stream ends
                raise _request_error(error, client) from None
            await self._carry(lease, opened, context, record)
        except RequestError as error:
            status = to_status(error).name
            self._errors[status.lower()] += 1
            if error is self._ending:
                # Of hundreds of actors each may come back again and again.
                self._log.log(logging.INFO, "told of the end", "%s: told that %s", client, error)
            else:
                said = client, status, printable(str(error))
                self._log.log(logging.WARNING, status, "%s: %s: %s", *said)
            # Before the client hears of it: what it does then comes later.
            record.ended(to_status(error), _details(error))
            await context.abort(to_status(error), _details(error))
        except BaseException:
            record.ended(grpc.StatusCode.CANCELLED, "")
            raise
        else:
            record.ended(grpc.StatusCode.OK, "")

    # Opening ------------------------------------------------------------------------------------

    async def _read_open_of_few(self, context: Context, record: StreamRecord) -> pb.Open:
        if self._unopened >= MAX_UNOPENED_STREAMS:
            raise NoCapacity(f"{self._unopened} streams have sent no Open yet: connect again later")
        self._unopened += 1
        try:
            return await self._read_open(context, record)
        finally:
            self._unopened -= 1

    async def _read_open(self, context: Context, record: StreamRecord) -> pb.Open:
        try:
            message = await asyncio.wait_for(_read(context, record), self._open_timeout_seconds)
        except TimeoutError:
            raise InvalidRequest(
                f"expected Open within {self._open_timeout_seconds:g} s, found nothing"
            ) from None
        kind = None if message is None else message.WhichOneof("kind")
        if message is None or kind != "open":
            raise InvalidRequest(f"expected Open as the stream's first message, found {kind}")
        opening: pb.Open = message.open
        _check_protocol(opening)
        if opening.num_environments < 1:
            raise InvalidRequest("num_environments: expected at least 1, found 0")
        if len(opening.client) > MAX_CLIENT_NAME:
            raise InvalidRequest(
                f"client: expected at most {MAX_CLIENT_NAME} characters, found {len(opening.client)}"
            )
        if len(opening.client_version) > MAX_CLIENT_VERSION:
            raise InvalidRequest(
                f"client_version: expected at most {MAX_CLIENT_VERSION} characters, found "
                f"{len(opening.client_version)}"
            )
        if opening.mode not in (pb.TRAIN, pb.EVALUATE):
            raise InvalidRequest(f"mode: expected TRAIN or EVALUATE, found {opening.mode}")
        return opening

    async def _open(self, opening: pb.Open, client: str) -> tuple[Lease, pb.Opened]:
        spec = specs.from_proto(opening.spec)
        await self._until_ready(spec)
        lane = self._lanes.get(opening.mode)
        if lane is None:
            mode = pb.Mode.Name(opening.mode)
            modes = " or ".join(pb.Mode.Name(mode) for mode in self._lanes)
            raise InvalidRequest(f"mode: expected {modes} (what this learner serves), found {mode}")
        if spec != lane.spec:
            raise InvalidRequest(f"spec: expected {lane.spec}, found {spec}")
        count, version = opening.num_environments, lane.version()
        lease = self._leases.find(opening.resume_token, lane, count)
        resumed = lease is not None
        if lease is None:
            _check_size(opening, lane)
            lease = self._leases.begin(lane, count, client, printable(opening.client_version))
        what = "environment" if count == 1 else "environments"
        logger.info("%s: %s %d %s", client, "resumes" if resumed else "brings", count, what)
        return lease, pb.Opened(
            session_token=lease.session.token,
            resumed=resumed,
            lease_ttl_ms=round(self._leases.lease_seconds * 1000),
            slots=lease.session.slots.tolist(),
            policy_version=version,
        )

    async def _until_ready(self, spec: EnvironmentSpec) -> None:
        if not self._ready.is_set():
            self._offer_spec(spec)
            await self._ready.wait()
        if self._ending is not None:
            raise self._ending.with_traceback(None)

    # The stream ---------------------------------------------------------------------------------

    async def _carry(
        self, lease: Lease, opened: pb.Opened, context: Context, record: StreamRecord
    ) -> None:
        """Carry a lease on this stream. What the reader meets reaches the writer by the outbox."""
        outbox: Outbox = asyncio.Queue()
        self._leases.attach(lease, outbox)
        reader = asyncio.create_task(self._read_steps(lease, context, record, outbox))
        try:
            await _write(pb.ServerMessage(opened=opened), context, record)
            while (item := await outbox.get()) is not None:
                if isinstance(item, RequestError):
                    # One error may end many streams: their tracebacks would pile up in it.
                    raise item.with_traceback(None)
                await _write(item, context, record)
        finally:
            reader.cancel()
            lost = lease.outbox is outbox and not lease.ended and self._ending is None
            self._leases.detach(lease, outbox)
            if lost:
                seconds = self._leases.lease_seconds
                logger.info("%s: stream lost; its lease waits %g s", lease.session.client, seconds)

    async def _read_steps(
        self, lease: Lease, context: Context, record: StreamRecord, outbox: Outbox
    ) -> None:
        """Take steps in until Close, the stream's end, a mistake, or another stream goes on with it."""
        pace = Pace(self._max_message_rate)
        max_unread = 2 * len(lease.session.slots) + 16
        try:
            while (message := await _read(context, record)) is not None:
                if lease.outbox is not outbox:
                    return
                if not self._take_in(lease, message):
                    break
                if outbox.qsize() > max_unread:
                    raise InvalidRequest(f"expected the answers to be read, found {max_unread} unread")
                if seconds := pace.too_early():
                    await asyncio.sleep(seconds)
        except Exception as error:  # noqa: BLE001 - whatever it is, only this stream ends
            if lease.outbox is outbox:
                self._leases.end(lease, LeaseEnd.REFUSED)
            outbox.put_nowait(_request_error(error, lease.session.client))
        else:
            # After a half-close without Close the lease lives on: a broken connection looks the same.
            outbox.put_nowait(None)

    def _take_in(self, lease: Lease, message: pb.ClientMessage) -> bool:
        """Act on a message. False if it was the last."""
        kind = message.WhichOneof("kind")
        if kind == "step":
            if (request := lease.session.accept(message.step)) is not None:
                self._leases.note_asked(lease, message.step.sequence, len(request.slots))
                lease.lane.submit(request)
            return True
        if kind == "close":
            if message.close.error:
                error = printable(message.close.error[:MAX_CLOSE_ERROR])
                logger.warning("%s: its environment failed: %s", lease.session.client, error)
            self._leases.end(lease, LeaseEnd.CLOSED)
            return False
        raise InvalidRequest(f"expected Step or Close after Open, found {kind}")


def _check_protocol(opening: pb.Open) -> None:
    """Of one minor version to the next, so that learner and actors are upgraded one after the other."""
    version, minor = opening.protocol_version, opening.protocol_minor
    if version == PROTOCOL_VERSION and abs(minor - PROTOCOL_MINOR) <= 1:
        return
    lowest = f"{PROTOCOL_VERSION}.{max(PROTOCOL_MINOR - 1, 0)}"
    highest = f"{PROTOCOL_VERSION}.{PROTOCOL_MINOR + 1}"
    older = "actor" if (version, minor) < (PROTOCOL_VERSION, PROTOCOL_MINOR) else "learner"
    raise InvalidRequest(
        f"protocol: expected {lowest} to {highest} (this learner's is {PROTOCOL_VERSION}."
        f"{PROTOCOL_MINOR}), found {version}.{minor}: upgrade the {older}, which is the older one"
    )


def _check_size(opening: pb.Open, lane: Lane) -> None:
    count = opening.num_environments
    if count > lane.max_rows:
        raise InvalidRequest(
            f"num_environments: expected at most {lane.max_rows} in a session, found {count}: "
            "open several sessions, or raise --inference-batch-size"
        )
    row = sum(leaf.num_bytes for leaf in lane.spec.observation)
    if count * row > MAX_STEP_BYTES:
        raise InvalidRequest(
            f"num_environments: expected at most {MAX_STEP_BYTES // row} in a session (observations "
            f"of {row} bytes in a message of {MAX_STEP_BYTES}), found {count}: open several sessions"
        )


async def _read(context: Context, record: StreamRecord) -> pb.ClientMessage | None:
    """The stream's next message; None at its end."""
    try:
        message: object = await context.read()
    except DecodeError:
        record.unreadable()
        raise InvalidRequest("expected a ClientMessage, found bytes that are none") from None
    if not isinstance(message, pb.ClientMessage):
        return None
    record.received(message)
    return message


async def _write(message: pb.ServerMessage, context: Context, record: StreamRecord) -> None:
    record.sent(message)
    await context.write(message)


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
