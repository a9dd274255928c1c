"""The gRPC server around the service: addresses, health, reflection, strangers, its end."""

import gc
import socket
import threading
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from learner.config import LearnerOptions
from learner.serving.addresses import Addresses
from learner.serving.security import ServerSecurity
from learner.serving.server import SERVICE_NAME, InferenceServer
from protos.errors import ConfigError, NotServing
from tests.certificates import TOKEN, Authority
from tests.fakes import PATIENCE_SECONDS, FakeLearner, LogLines
from tests.learner.serving.wire import Stream, http2_call, opening, step


def health(address: str, service: str) -> str:
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=service)
        status: int = stub.Check(request, timeout=PATIENCE_SECONDS).status
        return health_pb2.HealthCheckResponse.ServingStatus.Name(status)


@pytest.mark.parametrize("service", ["", SERVICE_NAME])
def test_health_follows_the_learner(address: str, service: str) -> None:
    with FakeLearner(address, starting=True) as learner:
        assert health(address, service) == "NOT_SERVING"
        learner.server.open_lanes(learner.lanes)
        assert health(address, service) == "SERVING"
        learner.server.set_healthy(False)
        assert health(address, service) == "NOT_SERVING"
        learner.server.set_healthy(True)
        assert health(address, service) == "SERVING"
        learner.server.end_streams(NotServing("later"))
        assert health(address, service) == "NOT_SERVING"


def test_reflection_describes_the_service(learner: FakeLearner) -> None:
    with grpc.insecure_channel(learner.address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert SERVICE_NAME in database.get_services()
        file = database.FindFileContainingSymbol(SERVICE_NAME)
        assert [method.name for method in file.service[0].method] == ["Act"]


def test_close_cuts_off_a_client_that_does_not_listen_and_nothing_else(address: str) -> None:
    """Such as one that is stopped (SIGSTOP): gRPC's own tasks come to their end all the same."""
    learner = FakeLearner(address)
    with LogLines("asyncio") as log, learner, Stream(address) as stream:
        stream.open()
        learner.server.close()
        gc.collect()
        assert log.lines() == []


def test_who_watches_health_and_takes_nothing_in_holds_up_nobody(address: str) -> None:
    with FakeLearner(address) as learner, socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(address.removeprefix("unix:"))
        stranger.settimeout(PATIENCE_SECONDS)
        stranger.sendall(http2_call("/grpc.health.v1.Health/Watch", window=0))
        received = b""
        # Bytes of a frame's type (HEADERS), flags and stream: the watching has begun.
        while b"\x01\x04\x00\x00\x00\x01" not in received:
            received += stranger.recv(1 << 16)
        ending = threading.Thread(target=learner.server.end_streams, args=[NotServing("later")])
        ending.start()
        ending.join(PATIENCE_SECONDS)
        assert not ending.is_alive()
        # It was not sent away for that, or for its silence, before.
        stranger.setblocking(False)
        with pytest.raises(BlockingIOError):
            _read_to_the_end(stranger)


def _read_to_the_end(stranger: socket.socket) -> None:
    while stranger.recv(1 << 16):
        pass


# An address for probes --------------------------------------------------------------------------


def probed(learner: FakeLearner) -> str:
    return f"127.0.0.1:{learner.server.health_port}"


@pytest.mark.parametrize("service", ["", SERVICE_NAME])
def test_probes_are_told_what_the_learner_is(address: str, service: str) -> None:
    with FakeLearner(address, health_listen="127.0.0.1:0", starting=True) as learner:
        assert health(probed(learner), service) == "NOT_SERVING"
        learner.server.open_lanes(learner.lanes)
        assert health(probed(learner), service) == "SERVING"
        learner.server.set_healthy(False)
        assert health(probed(learner), service) == "NOT_SERVING"
        learner.server.set_healthy(True)
        assert health(probed(learner), service) == "SERVING"
        learner.server.end_streams(NotServing("later"))
        assert health(probed(learner), service) == "NOT_SERVING"


def test_probes_need_neither_tls_nor_a_token(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    options = LearnerOptions(**authority.issue("learner"), token_file=authority.tokens(TOKEN))  # type: ignore[arg-type]
    security = ServerSecurity(options, environ={})
    with FakeLearner("127.0.0.1:0", health_listen="127.0.0.1:0", security=security) as learner:
        assert health(probed(learner), "") == "SERVING"


def test_the_address_for_probes_answers_nothing_else(address: str) -> None:
    with FakeLearner(address, health_listen="127.0.0.1:0") as learner:
        with Stream(probed(learner)) as stream:
            stream.send(opening())
            assert stream.ended()[0] is grpc.StatusCode.UNIMPLEMENTED
        with grpc.insecure_channel(probed(learner)) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest()
            with pytest.raises(grpc.RpcError) as ended:
                next(stub.Watch(request, timeout=PATIENCE_SECONDS))
            assert ended.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert ended.value.details() == "this address answers Check alone"
            with pytest.raises(grpc.RpcError) as reflected:
                ProtoReflectionDescriptorDatabase(channel).get_services()
            assert reflected.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_taken_address_for_probes_is_refused(address: str) -> None:
    with FakeLearner(address, health_listen="127.0.0.1:0") as learner:
        other = InferenceServer(Addresses("127.0.0.1:0", health=probed(learner)), lease_seconds=1)
        with pytest.raises(ConfigError) as refusal:
            other.start()
        other.close()
        assert str(refusal.value) == (
            f"--health-listen {probed(learner)}: expected a free address, HOST:PORT or unix:PATH; "
            f"Failed to bind to address {probed(learner)}"
        )


def test_a_start_that_fails_frees_the_addresses_that_it_had(address: str, tmp_path: Path) -> None:
    """Whoever catches the error can start again with them."""
    local = f"unix:{tmp_path}/local"
    with FakeLearner(address, health_listen="127.0.0.1:0") as learner:
        failed = InferenceServer(Addresses("127.0.0.1:0", local, probed(learner)), lease_seconds=1)
        with pytest.raises(ConfigError, match=r"--health-listen 127.0.0.1:\d+: expected a free address"):
            failed.start()
        assert failed.port
        assert not Path(local.removeprefix("unix:")).exists()
        listen = f"127.0.0.1:{failed.port}"
        with FakeLearner(listen, local=local) as again, Stream(again.address) as stream:
            stream.open()
        failed.close()


@pytest.mark.parametrize("listen", ["", "7778", ":7778", "127.0.0.1:99999"])
def test_a_malformed_address_for_probes_is_refused(address: str, listen: str) -> None:
    server = InferenceServer(Addresses(address, health=listen), lease_seconds=1)
    with pytest.raises(ConfigError) as refusal:
        server.start()
    assert str(refusal.value) == f"--health-listen {listen}: expected HOST:PORT or unix:PATH"


# Addresses --------------------------------------------------------------------------------------


def refused(listen: str) -> str:
    server = InferenceServer(Addresses(listen), lease_seconds=1)
    with pytest.raises(ConfigError) as refusal:
        server.start()
    server.close()
    return str(refusal.value)


def test_a_second_server_on_a_port_is_refused() -> None:
    with FakeLearner("127.0.0.1:0") as learner:
        assert refused(learner.address) == (
            f"--listen {learner.address}: expected a free address, HOST:PORT or unix:PATH; "
            f"Failed to bind to address {learner.address}"
        )
        with Stream(learner.address) as stream:
            stream.open()


def test_a_second_server_on_a_unix_socket_is_refused(learner: FakeLearner) -> None:
    message = refused(learner.address)
    assert message == f"--listen {learner.address}: expected a free address, found another server on it"
    with Stream(learner.address) as stream:
        stream.open()


def test_a_socket_that_a_killed_server_left_is_taken(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(address.removeprefix("unix:"))
    with FakeLearner(address), Stream(address) as stream:
        stream.open()


@pytest.mark.parametrize(
    "listen",
    ["", "7777", "localhost", "127.0.0.1:", ":7777", "127.0.0.1:http", "127.0.0.1:99999", "a:-1"],
)
def test_a_malformed_address_is_refused(listen: str) -> None:
    assert refused(listen) == f"--listen {listen}: expected HOST:PORT or unix:PATH"


@pytest.mark.parametrize("listen", ["unix:/nowhere/socket", "203.0.113.1:7777"])
def test_an_address_that_cannot_be_bound_is_refused(listen: str) -> None:
    assert refused(listen).startswith(f"--listen {listen}: expected a free address, HOST:PORT or ")


def test_a_path_that_is_too_long_for_a_socket_is_refused() -> None:
    listen = f"unix:/{'long' * 50}"
    assert (
        refused(listen) == f"--listen {listen}: expected a path for a unix socket; AF_UNIX path too long"
    )


class Dying(InferenceServer):
    """A server whose event loop fails once it is told to end."""

    async def _serve(self) -> None:
        await super()._serve()
        raise ZeroDivisionError("boom")


def test_the_owner_hears_of_an_event_loop_that_dies(address: str) -> None:
    failures: list[BaseException] = []
    server = Dying(Addresses(address), lease_seconds=1, on_failure=failures.append)
    server.start()
    assert failures == []
    server.close()
    assert [str(failure) for failure in failures] == ["boom"]


def test_strangers_on_the_port_disturb_nobody() -> None:
    with FakeLearner("127.0.0.1:0") as learner, Stream(learner.address) as stream:
        stream.open()
        sequence = 0
        for bytes_ in (
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\0\xff" * 5000,
            b"PRI * HTTP/2.0\r\n\r\n",
            b"",
        ):
            with socket.create_connection(("127.0.0.1", learner.server.port)) as stranger:
                stranger.sendall(bytes_)
                sequence += 1
                assert stream.act(step(sequence, 10)) == [10]
        with Stream(learner.address) as other:
            other.open()


def test_closing_ends_open_streams_without_a_complaint(
    address: str, log: LogLines, caplog: pytest.LogCaptureFixture
) -> None:
    with FakeLearner(address) as learner, Stream(address) as stream:
        stream.open()
        stream.act(step(1, 10))
        learner.server.close()
        assert stream.ended()[0] in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        learner.server.close()
    assert log.lines() == []
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_closing_removes_the_unix_socket(address: str) -> None:
    path = Path(address.removeprefix("unix:"))
    with FakeLearner(address):
        assert path.is_socket()
    assert not path.exists()


def test_an_answer_after_the_end_is_dropped(address: str) -> None:
    with FakeLearner(address) as learner, Stream(address) as stream:
        learner.on_step = learner.requests.put
        stream.open()
        stream.send(step(1, 10))
        request = learner.next_request()
        learner.server.close()
        request.reply(request.slots, 1)


def test_a_server_that_was_never_started_closes() -> None:
    InferenceServer(Addresses("127.0.0.1:0"), lease_seconds=1).close()
