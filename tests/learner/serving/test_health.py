"""The health service: what who asks and who watches is told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from learner.serving.health import HealthServicer
from learner.serving.server import SERVICE_NAME
from tests.fakes import PATIENCE_SECONDS, FakeLearner

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


def on_a_loop(test: Callable[[HealthServicer], Awaitable[None]]) -> None:
    async def run() -> None:
        await asyncio.wait_for(test(HealthServicer()), PATIENCE_SECONDS)

    asyncio.run(run())


def watching(health: HealthServicer, service: str) -> AsyncIterator[Any]:
    context: Any = None
    return health.Watch(health_pb2.HealthCheckRequest(service=service), context)


async def told(watcher: AsyncIterator[Any]) -> int:
    return int((await anext(watcher)).status)


def test_a_watcher_of_an_unknown_service_hears_when_it_is_known() -> None:
    async def test(health: HealthServicer) -> None:
        health.set("b", SERVING)
        watcher = watching(health, "a")
        assert await told(watcher) == SERVICE_UNKNOWN
        health.set("a", NOT_SERVING)
        assert await told(watcher) == NOT_SERVING

    on_a_loop(test)


def test_a_watcher_that_is_slow_hears_what_is_so_now() -> None:
    async def test(health: HealthServicer) -> None:
        health.set("a", SERVING)
        watcher = watching(health, "a")
        assert await told(watcher) == SERVING
        health.set("a", NOT_SERVING)
        health.set("a", SERVICE_UNKNOWN)
        assert await told(watcher) == SERVICE_UNKNOWN

    on_a_loop(test)


def test_what_is_no_change_is_not_told() -> None:
    async def test(health: HealthServicer) -> None:
        health.set("a", SERVING)
        watcher = watching(health, "a")
        assert await told(watcher) == SERVING
        next_one = asyncio.ensure_future(told(watcher))
        for service, status in (("a", SERVING), ("b", NOT_SERVING)):
            health.set(service, status)
            await asyncio.sleep(0)
        health.set("a", NOT_SERVING)
        assert await next_one == NOT_SERVING

    on_a_loop(test)


def test_a_watcher_that_leaves_takes_nothing_from_the_others(learner: FakeLearner) -> None:
    request = health_pb2.HealthCheckRequest(service=SERVICE_NAME)
    with (
        grpc.insecure_channel(learner.address, OWN_CONNECTION) as channel,
        grpc.insecure_channel(learner.address, OWN_CONNECTION) as other,
    ):
        leaving = health_pb2_grpc.HealthStub(channel).Watch(request, timeout=PATIENCE_SECONDS)
        staying = health_pb2_grpc.HealthStub(other).Watch(request, timeout=PATIENCE_SECONDS)
        assert next(leaving).status == next(staying).status == SERVING
        leaving.cancel()
        # What is asked on the same connection comes after the cancelling.
        health_pb2_grpc.HealthStub(channel).Check(request, timeout=PATIENCE_SECONDS)
        for healthy, status in ((False, NOT_SERVING), (True, SERVING)):
            learner.server.set_healthy(healthy)
            assert next(staying).status == status


@pytest.mark.skipif(
    not hasattr(health_pb2, "HealthListRequest"), reason="the installed grpc_health has no List"
)
def test_all_services_are_listed(address: str) -> None:
    with (
        FakeLearner(address, health_listen="127.0.0.1:0") as learner,
        grpc.insecure_channel(address) as channel,
        grpc.insecure_channel(f"127.0.0.1:{learner.server.health_port}") as probes,
    ):
        module: Any = health_pb2
        request = module.HealthListRequest()
        stub: Any = health_pb2_grpc.HealthStub(channel)
        statuses = stub.List(request, timeout=PATIENCE_SECONDS).statuses
        assert {name: each.status for name, each in statuses.items()} == {
            "": SERVING,
            SERVICE_NAME: SERVING,
        }
        probing: Any = health_pb2_grpc.HealthStub(probes)
        with pytest.raises(grpc.RpcError) as refused:
            probing.List(request, timeout=PATIENCE_SECONDS)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
