"""The HTTP server on real sockets, with clients that mean well and clients that do not."""

import asyncio
import errno
import os
import socket
from collections.abc import Iterator

import pytest

from learner.telemetry import http_server
from learner.telemetry.http_server import MAX_CONNECTIONS, MAX_HEAD_BYTES, HttpServer, Response
from protos.errors import ConfigError
from tests.fakes import LogLines

PATIENCE_SECONDS = 20.0


def fail_test(error: BaseException) -> None:
    raise AssertionError from error


def hello() -> Response:
    return Response(b"hello", "text/plain; charset=utf-8", content_security_policy="default-src 'self'")


@pytest.fixture
def server() -> Iterator[HttpServer]:
    server = HttpServer("127.0.0.1:0", {"/hello": hello}, on_failure=fail_test)
    server.start()
    yield server
    server.close()


def connect(server: HttpServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS)


def read_all(client: socket.socket) -> bytes:
    """Everything until the server closes, which a reset does too."""
    parts = []
    try:
        while part := client.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def ask(server: HttpServer, request: bytes) -> tuple[str, dict[str, str], bytes]:
    """Status line, headers and body of the answer to `request`."""
    with connect(server) as client:
        client.sendall(request)
        head, _, body = read_all(client).partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    return status, dict(line.split(": ", 1) for line in lines), body


def test_a_route_answers_with_headers_that_keep_the_browser_on_guard(server: HttpServer) -> None:
    status, headers, body = ask(server, b"GET /hello?again HTTP/1.1\r\nHost: here\r\n\r\n")
    assert status == "HTTP/1.0 200 OK"
    assert body == b"hello"
    assert headers["Content-Type"] == "text/plain; charset=utf-8"
    assert headers["Content-Length"] == "5"
    assert headers["Content-Security-Policy"] == "default-src 'self'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Server"] == "seedbed"


def test_head_is_get_without_the_body(server: HttpServer) -> None:
    status, headers, body = ask(server, b"HEAD /hello HTTP/1.1\r\n\r\n")
    assert (status, headers["Content-Length"], body) == ("HTTP/1.0 200 OK", "5", b"")


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /other HTTP/1.1", "404 Not Found"),
        (b"GET /../../etc/passwd HTTP/1.1", "404 Not Found"),
        (b"POST /hello HTTP/1.1", "405 Method Not Allowed"),
        (b"DELETE /hello HTTP/1.1", "405 Method Not Allowed"),
        (b"GET /hello HTTP/9.9", "505 Invalid HTTP version (9.9)"),
        (b"\x16\x03\x01 \xff <script> x", "400 Bad request version ('x')"),
        (b"<script>", "400 Bad request syntax ('<script>')"),
        (b"GET /hello HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"C: d", "431 Too many headers"),
        (b"GET /hello HTTP/1.1\r\nA: " + b"b" * MAX_HEAD_BYTES, "431 Request Header Fields Too Large"),
    ],
)
def test_whatever_else_is_refused_and_the_server_goes_on(
    server: HttpServer, request_line: bytes, status: str
) -> None:
    found, headers, body = ask(server, request_line + b"\r\n\r\n")
    assert headers.get("Content-Length") == "0" or "Content-Security-Policy" in headers
    assert found.startswith(f"HTTP/1.0 {status}")
    assert b"hello" not in body
    assert b"<script>" not in body
    assert ask(server, b"GET /hello HTTP/1.0\r\n\r\n")[2] == b"hello"


def test_a_refusal_is_guarded_too(server: HttpServer) -> None:
    _, headers, _ = ask(server, b"GET /other HTTP/1.1\r\n\r\n")
    assert headers["Content-Type"] == "text/plain; charset=utf-8"
    assert headers["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_a_slow_client_is_cut_off() -> None:
    server = HttpServer("127.0.0.1:0", {"/hello": hello}, on_failure=fail_test, patience_seconds=0.05)
    server.start()
    with connect(server) as client:
        client.sendall(b"GET /hello HTTP/1.1\r\n")
        assert read_all(client) == b""
    server.close()


def test_a_client_that_does_not_read_is_cut_off() -> None:
    server = HttpServer(
        "127.0.0.1:0",
        {"/large": lambda: Response(bytes(50_000_000), "text/plain")},
        on_failure=fail_test,
        patience_seconds=0.5,
    )
    server.start()
    with connect(server) as client:
        client.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        # The answer is refused to nobody else meanwhile; this one sees its connection reset.
        with connect(server) as other:
            other.sendall(b"GET /other HTTP/1.1\r\n\r\n")
            assert b"404" in read_all(other)
        server.close()
        assert len(read_all(client)) < 50_000_000


def test_too_many_connections_are_turned_away(server: HttpServer) -> None:
    held = [connect(server) for _ in range(MAX_CONNECTIONS)]
    try:
        status, _, _ = ask(server, b"")
        assert status == "HTTP/1.0 503 Service Unavailable"
    finally:
        for client in held:
            client.close()


@pytest.mark.parametrize("error", [ZeroDivisionError("no rate"), OSError("no rate")])
def test_a_route_that_raises_is_a_failure_of_the_server(error: Exception) -> None:
    failures: list[BaseException] = []

    def broken() -> Response:
        raise error

    server = HttpServer("127.0.0.1:0", {"/broken": broken}, on_failure=failures.append)
    server.start()
    with connect(server) as client:
        client.sendall(b"GET /broken HTTP/1.1\r\n\r\n")
        assert read_all(client) == b""
    server.close()
    assert [str(failure) for failure in failures] == ["no rate"]


@pytest.mark.parametrize("number", [errno.EHOSTUNREACH, errno.ENETDOWN, errno.ECONNRESET])
def test_a_network_that_breaks_is_no_failure_of_the_server(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    failures: list[BaseException] = []
    server = HttpServer("127.0.0.1:0", {"/hello": hello}, on_failure=failures.append)
    server.start()

    async def broken(reader: asyncio.StreamReader, separator: bytes) -> bytes:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(asyncio.StreamReader, "readuntil", broken)
        with connect(server) as client:
            assert read_all(client) == b""
    assert ask(server, b"GET /hello HTTP/1.0\r\n\r\n")[2] == b"hello"
    server.close()
    assert failures == []


@pytest.mark.parametrize("host", ["learner..example", "x" * 64 + ".example", "learner\0"])
def test_a_host_that_cannot_be_is_refused(host: str) -> None:
    server = HttpServer(f"{host}:0", {}, on_failure=fail_test)
    with pytest.raises(ConfigError, match=f"^--metrics-listen {host}:0: expected a free address; "):
        server.start()
    server.close()


@pytest.mark.parametrize("address", ["7779", ":7779", "localhost:", "localhost:http", "localhost:70000"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    server = HttpServer(address, {}, on_failure=fail_test)
    with pytest.raises(ConfigError, match=f"^--metrics-listen {address}: expected HOST:PORT$"):
        server.start()
    server.close()


def test_an_address_that_is_taken_is_refused(server: HttpServer) -> None:
    address = f"127.0.0.1:{server.port}"
    other = HttpServer(address, {}, on_failure=fail_test)
    with pytest.raises(
        ConfigError, match=f"^--metrics-listen {address}: expected a free address; .*in use"
    ):
        other.start()
    other.close()


def test_the_log_says_which_port_was_chosen() -> None:
    server = HttpServer("localhost:0", {}, on_failure=fail_test)
    with LogLines(http_server.__name__) as log:
        server.start()
    server.close()
    server.close()
    assert log.lines(0) == [f"status page on http://localhost:0/ (port {server.port})"]


def test_ipv6_addresses_have_brackets() -> None:
    server = HttpServer("[::1]:0", {"/hello": hello}, on_failure=fail_test)
    try:
        server.start()
    except ConfigError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with socket.create_connection(("::1", server.port), timeout=PATIENCE_SECONDS) as client:
        client.sendall(b"GET /hello HTTP/1.1\r\n\r\n")
        assert read_all(client).endswith(b"hello")
    server.close()
