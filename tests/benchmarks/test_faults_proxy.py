"""The network that breaks when it is told to."""

import socket
from collections.abc import Iterator

import pytest

from benchmarks.faults.proxy import Proxy

PATIENCE_SECONDS = 20.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_SECONDS)
        yield server


@pytest.fixture
def proxy(listener: socket.socket) -> Iterator[Proxy]:
    with Proxy(listener.getsockname()[1]) as relay:
        yield relay


@pytest.fixture
def near(proxy: Proxy) -> Iterator[socket.socket]:
    with connect(proxy) as end:
        yield end


@pytest.fixture
def far(near: socket.socket, listener: socket.socket) -> Iterator[socket.socket]:
    with accept(listener) as end:
        yield end


def connect(proxy: Proxy) -> socket.socket:
    host, _, port = proxy.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)


def accept(listener: socket.socket) -> socket.socket:
    end, _ = listener.accept()
    end.settimeout(PATIENCE_SECONDS)
    return end


def has_nothing(end: socket.socket) -> bool:
    """Whether nothing has come, once the proxy has carried out all that it was told before."""
    end.setblocking(False)
    try:
        end.recv(1)
    except BlockingIOError:
        return True
    finally:
        end.settimeout(PATIENCE_SECONDS)
    return False


def test_what_is_sent_while_the_network_is_down_arrives_when_it_heals(
    proxy: Proxy, listener: socket.socket, near: socket.socket, far: socket.socket
) -> None:
    near.sendall(b"before")
    assert far.recv(100) == b"before"
    proxy.sever()
    near.sendall(b"to")
    far.sendall(b"fro")
    with connect(proxy) as late:
        late.sendall(b"late")
        proxy.delay(0)  # It has answered, and so has seen all that came before.
        assert has_nothing(far)
        assert has_nothing(near)
        proxy.heal()
        assert far.recv(100) == b"to"
        assert near.recv(100) == b"fro"
        with accept(listener) as joined:
            assert joined.recv(100) == b"late"
    assert proxy.accepted == 2


def test_a_connection_that_is_broken_while_the_network_is_down_is_gone(
    proxy: Proxy, near: socket.socket, far: socket.socket
) -> None:
    proxy.sever()
    proxy.reset()
    proxy.heal()
    for end in (near, far):
        with pytest.raises(ConnectionResetError):
            end.recv(1)


def test_a_stalled_connection_stays_open_and_silent_whatever_heals(
    proxy: Proxy, listener: socket.socket, near: socket.socket, far: socket.socket
) -> None:
    proxy.stall()
    near.sendall(b"nobody hears")
    proxy.sever()
    proxy.heal()
    with connect(proxy) as other, accept(listener) as others_end:
        other.sendall(b"later ones flow")
        assert others_end.recv(100) == b"later ones flow"
        assert has_nothing(far)


def test_a_slow_network_keeps_the_order_and_tells_the_end_last(
    proxy: Proxy, near: socket.socket, far: socket.socket
) -> None:
    proxy.delay(0.2)
    near.sendall(b"1")
    proxy.delay(0.0)  # What is on its way is not overtaken.
    near.sendall(b"2")
    near.close()
    told = b""
    while data := far.recv(100):
        told += data
    assert told == b"12"


def test_without_a_server_a_connection_is_closed(listener: socket.socket, proxy: Proxy) -> None:
    listener.close()
    with connect(proxy) as end:
        assert end.recv(1) == b""
