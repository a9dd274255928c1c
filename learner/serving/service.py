"""The streams: sessions open here, steps go to the batcher, actions come back."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping

import grpc
from google.protobuf.message import DecodeError

from learner.flags import LeaseEnd
from learner.serving.leases import Lane, Lease, Leases
from learner.serving.pace import Pace
from learner.serving.recorder import NoRecorder, Recorder, StreamRecord
from learner.serving.rpc import Rpc
from learner.serving.sparing import SparingLog
from learner.telemetry.logs import printable
from learner.telemetry.report import SessionReport
from protos import PROTOCOL_MINOR, PROTOCOL_VERSION, specs
from protos import inference_pb2 as pb
from protos.errors import InvalidRequest, LearnerError, NoCapacity, RequestError, to_status
from protos.specs import EnvironmentSpec

logger = logging.getLogger(__name__)

METHOD = f"/{pb.DESCRIPTOR.services_by_name['Inference'].full_name}/Act"

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


class InferenceService:
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

    async def act(self, rpc: Rpc) -> None:
        """One stream: open, then steps in and actions out, until either side ends it."""
        client = "a client"
        record = self._recorder.begin()
        try:
            opening = await self._read_open_of_few(rpc, record)
            client = printable(opening.client) or rpc.peer()
            try:
                lease, opened = await self._open(opening, client)
            except Exception as error:  # noqa: BLE001 - whatever it is, only this stream ends
                raise _request_error(error, client) from None
            await self._carry(_Stream(self._leases, lease, rpc, record, self._max_message_rate), opened)
        except RequestError as error:
            status = to_status(error)
            self._errors[status.name.lower()] += 1
            if error is self._ending:
                # Of hundreds of actors each may come back again and again.
                self._log.log(logging.INFO, "told of the end", "%s: told that %s", client, error)
            else:
                said = client, status.name, printable(str(error))
                self._log.log(logging.WARNING, status.name, "%s: %s: %s", *said)
            # Before the client hears of it: what it does then comes later.
            record.ended(status, _details(error))
            rpc.finish(status, _details(error))
        except BaseException:
            record.ended(grpc.StatusCode.CANCELLED, "")
            raise
        else:
            record.ended(grpc.StatusCode.OK, "")

    # Opening ------------------------------------------------------------------------------------

    async def _read_open_of_few(self, rpc: Rpc, record: StreamRecord) -> pb.Open:
        if self._unopened >= MAX_UNOPENED_STREAMS:
            raise NoCapacity(f"{self._unopened} streams have sent no Open yet: connect again later")
        self._unopened += 1
        try:
            return await self._read_open(rpc, record)
        finally:
            self._unopened -= 1

    async def _read_open(self, rpc: Rpc, record: StreamRecord) -> pb.Open:
        try:
            data = await asyncio.wait_for(rpc.read(), self._open_timeout_seconds)
        except TimeoutError:
            raise InvalidRequest(
                f"expected Open within {self._open_timeout_seconds:g} s, found nothing"
            ) from None
        message = None if data is None else _parse(data, record)
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

    async def _carry(self, stream: "_Stream", opened: pb.Opened) -> None:
        """Carry a lease on this stream, to the stream's end."""
        lease = stream.lease
        self._leases.attach(lease, stream)
        try:
            stream.send(pb.ServerMessage(opened=opened))
            stream.listen()
            if (error := await stream.ended) is not None:
                # One error may end many streams: their tracebacks would pile up in it.
                raise error.with_traceback(None)
        finally:
            stream.end(None)
            lost = lease.outbox is stream and not lease.ended and self._ending is None
            self._leases.detach(lease, stream)
            if lost:
                seconds = self._leases.lease_seconds
                logger.info("%s: stream lost; its lease waits %g s", lease.session.client, seconds)


class _Stream:
    """One stream that carries a lease: each message is handled as it comes."""

    def __init__(
        self, leases: Leases, lease: Lease, rpc: Rpc, record: StreamRecord, max_message_rate: int
    ) -> None:
        self.lease = lease
        self.ended: asyncio.Future[RequestError | None] = asyncio.get_running_loop().create_future()
        """why it ends; None for an end that is well"""
        self._leases = leases
        self._rpc = rpc
        self._record = record
        self._pace = Pace(max_message_rate)
        self._max_unread = 2 * len(lease.session.slots) + 16
        self._listens = False
        self._half_closed = False

    def send(self, message: pb.ServerMessage) -> None:
        if self.ended.done():
            return
        self._record.sent(message)
        data = message.SerializeToString()
        if self._listens or self._half_closed or not self.lease.session.idle:
            self._rpc.send(data)
            self._end_half_closed()
        else:
            # Nothing is left to be answered: the next message comes before anything else is sent.
            self._listens = True
            self._rpc.send_and_receive(data, self._take)

    def end(self, error: RequestError | None) -> None:
        if not self.ended.done():
            self.ended.set_result(error)

    def listen(self) -> None:
        """Take in the next message, and so all that follow, until Close, the stream's end, a mistake, or
        another stream goes on with the lease. Nothing where it listens already."""
        if not self._listens:
            self._listens = True
            self._rpc.receive(self._take)

    def _take(self, data: bytes | None) -> None:
        lease = self.lease
        # What is answered meanwhile asks for no message before its time.
        seconds = self._pace.too_early()
        self._listens = seconds > 0
        if self.ended.done() or lease.outbox is not self:
            return
        if data is None:
            # Without Close the lease lives on: a broken connection looks the same. What is still to be
            # answered goes out before the stream ends.
            self._half_closed = True
            self._end_half_closed()
            return
        try:
            goes_on = self._take_in(_parse(data, self._record))
            if self._rpc.unsent > self._max_unread:
                raise InvalidRequest(f"expected the answers to be read, found {self._max_unread} unread")
        except Exception as error:  # noqa: BLE001 - whatever it is, only this stream ends
            self._leases.end(lease, LeaseEnd.REFUSED)
            self.end(_request_error(error, lease.session.client))
            return
        if not goes_on:
            self.end(None)
        elif seconds:
            asyncio.get_running_loop().call_later(seconds, self._rpc.receive, self._take)
        elif not lease.session.all_wait:
            self.listen()

    def _end_half_closed(self) -> None:
        if self._half_closed and self.lease.session.owes_nothing:
            self.end(None)

    def _take_in(self, message: pb.ClientMessage) -> bool:
        """Act on a message. False if it was the last."""
        lease = self.lease
        kind = message.WhichOneof("kind")
        if kind == "step":
            if (request := lease.session.accept(message.step)) is not None:
                self._leases.submit(lease, message.step.sequence, request)
            else:
                self.listen()  # Nothing was submitted, whose turn's end would see to that.
            return True
        if kind == "close":
            if message.close.error:
                error = printable(message.close.error[:MAX_CLOSE_ERROR])
                logger.warning("%s: its environment failed: %s", lease.session.client, error)
            # What was answered before goes out before.
            self._leases.deliver()
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


def _parse(data: bytes, record: StreamRecord) -> pb.ClientMessage:
    try:
        message = pb.ClientMessage.FromString(data)
    except DecodeError:
        record.unreadable()
        raise InvalidRequest("expected a ClientMessage, found bytes that are none") from None
    record.received(message)
    return message


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
