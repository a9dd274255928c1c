"""The gRPC server on an event loop of its own thread: streams, health checks, reflection."""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from learner.serving.addresses import Addresses, owners_alone
from learner.serving.completion_loop import CompletionLoop
from learner.serving.health import CheckedAlone, HealthServicer
from learner.serving.leases import Lane
from learner.serving.recorder import Recorder
from learner.serving.rpc_server import RpcServer
from learner.serving.security import ServerSecurity
from learner.serving.service import MAX_MESSAGE_BYTES, METHOD, InferenceService
from learner.telemetry.report import SessionReport
from protos import inference_pb2 as pb
from protos.addresses import chosen_port
from protos.errors import ConfigError, RequestError
from protos.specs import EnvironmentSpec

logger = logging.getLogger(__name__)

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["Inference"].full_name

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Keepalive finds half-open connections: a peer that answers no ping for 10 s is gone.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Of every ping, gRPC's own among them: 60 s unless said, and the keepalive would wait for it.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Clients may ping as often as that, too.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    # A second learner on the same port is refused instead of taking half of the connections.
    ("grpc.so_reuseport", 0),
)

_HEALTH_OPTIONS = (
    # Who can reach this address is not known: a name of a service is all that a call brings.
    ("grpc.max_receive_message_length", 4096),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.so_reuseport", 0),
)
_MOST_PROBES = 100
"""Health checks at once on the address of their own; more are turned away."""


class InferenceServer:
    """Owns the event loop's thread. Start it, open lanes, close it; from any one thread."""

    def __init__(
        self,
        addresses: Addresses,
        *,
        lease_seconds: float,
        security: ServerSecurity | None = None,
        offer_spec: Callable[[EnvironmentSpec], None] = lambda spec: None,
        on_failure: Callable[[BaseException], None] = lambda error: None,
        open_timeout_seconds: float = 30.0,
        max_message_rate: int = 0,
        recorder: Recorder | None = None,
    ) -> None:
        self.port = 0
        """TCP port of `addresses.listen`, once started: for one that leaves the choice (port 0)."""
        self.health_port = 0
        """The same of `addresses.health`."""
        self._addresses = addresses
        self._credentials = security.credentials() if security else None
        self._guard = security.guard() if security else None
        self._on_failure = on_failure
        # Called on the event loop, where all that it makes lives.
        self._make_service = partial(
            InferenceService,
            lease_seconds=lease_seconds,
            offer_spec=offer_spec,
            on_failure=on_failure,
            open_timeout_seconds=open_timeout_seconds,
            max_message_rate=max_message_rate,
            recorder=recorder,
        )
        self._loop: CompletionLoop
        self._started: Future[None] = Future()
        self._ending: asyncio.Event
        self._servers: list[RpcServer] = []
        self._service: InferenceService
        self._health: HealthServicer
        self._thread = threading.Thread(target=self._run, name="event loop", daemon=True)

    def start(self) -> None:
        """Listen, not yet SERVING: clients that open wait for `open_lanes`.

        Raises:
            ConfigError: the address is malformed or taken.
        """
        self._addresses.check()
        self._thread.start()
        self._started.result()

    def open_lanes(self, lanes: Mapping[int, Lane]) -> None:
        """Serve the modes of `lanes`, and turn the health check SERVING."""
        asyncio.run_coroutine_threadsafe(self._open(lanes), self._loop).result()

    def set_healthy(self, healthy: bool) -> None:
        """Turn the health check SERVING or NOT_SERVING, once lanes are open; streams go on."""
        states = health_pb2.HealthCheckResponse
        status = states.SERVING if healthy else states.NOT_SERVING
        asyncio.run_coroutine_threadsafe(self._set_health(status), self._loop).result()

    def end_streams(self, reason: RequestError) -> None:
        """End every stream, and turn away new ones, with `reason`. Health turns NOT_SERVING."""
        asyncio.run_coroutine_threadsafe(self._end_streams(reason), self._loop).result()

    def close(self) -> None:
        """End everything that is open and join the thread. Idempotent."""
        if self._thread.is_alive():
            with suppress(RuntimeError):  # The loop is closed: the thread ends already.
                self._loop.call_soon_threadsafe(self._ending.set)
            self._thread.join()

    def sessions(self) -> list[SessionReport]:
        """All sessions, oldest first, once started."""
        return self._service.sessions()

    def statistics(self) -> Mapping[str, float]:
        numbers = dict(self._service.statistics())
        if self._guard:
            numbers["count_errors_unauthenticated"] = self._guard.refused
        return numbers

    def _run(self) -> None:
        self._loop = CompletionLoop()
        self._loop.set_exception_handler(self._hear)
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:  # noqa: BLE001 - whatever it is, the owner hears of it
            self._on_failure(error)
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._ending = asyncio.Event()
        try:
            await self._build()
            for server in self._servers:
                server.start()
        except Exception as error:  # noqa: BLE001 - whatever it is, `start` raises it
            try:
                await self._stop(grace=0.0)
            finally:
                self._started.set_exception(error)
            return
        self._started.set_result(None)
        await self._ending.wait()
        # Streams that were told the reason end by themselves within the grace.
        await self._stop(grace=1.0)

    async def _stop(self, grace: float) -> None:
        await asyncio.gather(*(server.stop(grace) for server in self._servers))

    def _hear(self, loop: object, context: dict[str, Any]) -> None:
        """asyncio would only log it, and the learner hang."""
        self._on_failure(context.get("exception") or RuntimeError(context["message"]))

    async def _build(self) -> None:
        guard = self._guard.refusal if self._guard else None
        server = RpcServer(self._loop, _OPTIONS, authorize=guard)
        self._servers.append(server)
        self._service = self._make_service()
        server.route(METHOD, self._service.act)
        self._health = HealthServicer()
        server.add(health_pb2_grpc.add_HealthServicer_to_server, self._health)
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        names = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflected = reflection.aio.ReflectionServicer(names)
        server.add(reflection_pb2_grpc.add_ServerReflectionServicer_to_server, reflected)
        addresses = self._addresses
        self.port = self._bind(server, addresses.listen)
        if addresses.local is not None:
            self._bind(server, addresses.local)
        logger.info("listening on %s%s", addresses.listen, chosen_port(addresses.listen, self.port))
        if addresses.health is not None:
            self._build_health(addresses.health)

    def _build_health(self, address: str) -> None:
        """A server of its own, because a service of gRPC is on all addresses of its server."""
        server = RpcServer(self._loop, _HEALTH_OPTIONS, max_calls=_MOST_PROBES)
        self._servers.append(server)
        server.add(health_pb2_grpc.add_HealthServicer_to_server, CheckedAlone(self._health))
        try:
            with owners_alone(address):
                self.health_port = server.bind(address)
        except RuntimeError as error:
            raise ConfigError(
                f"--health-listen {address}: expected a free address, HOST:PORT or unix:PATH; "
                f"{_without_hint(error)}"
            ) from error
        logger.info("health checks on %s%s", address, chosen_port(address, self.health_port))

    def _bind(self, server: RpcServer, address: str) -> int:
        try:
            if self._credentials is not None and not address.startswith("unix:"):
                return server.bind(address, self._credentials)
            with owners_alone(address):
                return server.bind(address)
        except RuntimeError as error:
            raise ConfigError(
                f"--listen {address}: expected a free address, HOST:PORT or unix:PATH; "
                f"{_without_hint(error)}"
            ) from error

    async def _open(self, lanes: Mapping[int, Lane]) -> None:
        self._service.open_lanes(lanes)
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)

    async def _end_streams(self, reason: RequestError) -> None:
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        self._service.end_streams(reason)

    async def _set_health(self, status: int) -> None:
        for name in ("", SERVICE_NAME):
            self._health.set(name, status)


def _without_hint(error: RuntimeError) -> str:
    """What gRPC says, without its advice to set GRPC_VERBOSITY: the reason is on stderr already."""
    return str(error).partition("; set GRPC_VERBOSITY")[0]
