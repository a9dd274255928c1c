"""gRPC's health service (grpc.health.v1): how it is with each service, for who asks and who watches.

`grpc_health` has one too. There a watcher that leaves takes from the others what tells them of changes.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_Context: TypeAlias = grpc.aio.ServicerContext[
    health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
]


class HealthServicer(health_pb2_grpc.HealthServicer):
    """Statuses by the names of services. Used on one event loop alone."""

    def __init__(self) -> None:
        self._statuses: dict[str, health_pb2.HealthCheckResponse] = {}
        self._changed = asyncio.Event()

    def set(self, service: str, status: int) -> None:
        """Tell all who ask from now on, and all who watch. "" is the whole server. Waits for nobody."""
        self._statuses[service] = health_pb2.HealthCheckResponse(status=status)
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(  # noqa: N802 - the RPC's name
        self, request: health_pb2.HealthCheckRequest, context: _Context
    ) -> health_pb2.HealthCheckResponse:
        status = self._statuses.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service here")
        return status

    async def Watch(  # noqa: N802 - the RPC's name
        self, request: health_pb2.HealthCheckRequest, context: _Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """The status, and each that follows: of several before the client has read, the last."""
        unknown = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
        told = None
        while True:
            # Before the status is looked at: what comes while the client reads is a change.
            changed = self._changed
            status = self._statuses.get(request.service, unknown)
            if status != told:
                told = status
                yield status
            await changed.wait()

    async def List(self, request: object, context: object) -> Any:  # noqa: N802 - the RPC's name
        """All statuses. Served if the installed grpc_health knows it: not all that are supported do."""
        return health_pb2.HealthListResponse(statuses=self._statuses)  # type: ignore[attr-defined] # nor the stubs


class CheckedAlone(health_pb2_grpc.HealthServicer):
    """Health that can be asked for and not watched: watchers could use up what probes need."""

    def __init__(self, health: HealthServicer) -> None:
        self._health = health

    async def Check(  # noqa: N802 - the RPC's name
        self, request: health_pb2.HealthCheckRequest, context: _Context
    ) -> health_pb2.HealthCheckResponse:
        return await self._health.Check(request, context)

    async def Watch(self, request: object, context: _Context) -> None:  # noqa: N802 - the RPC's name
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this address answers Check alone")

    List = Watch
