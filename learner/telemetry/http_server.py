"""A small HTTP server for what may be looked at: fixed routes, GET and HEAD, nothing that a client says
but the path.

asyncio carries the bytes and keeps the limits; `http.server` of the standard library reads the request.
"""

import asyncio
import io
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import NamedTuple

from protos.addresses import chosen_port, host_and_port
from protos.errors import ConfigError

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 8192
"""Request line and headers together."""

MAX_CONNECTIONS = 32
"""Connections at once: more are told that the server is busy."""

SECONDS_BETWEEN_ANSWERS = 0.005
"""So that whoever floods this server takes little of the time that training needs."""

_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_TOO_LONG = (
    b"HTTP/1.0 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
)


class Response(NamedTuple):
    """What a route answers."""

    body: bytes
    content_type: str
    status: int = HTTPStatus.OK
    content_security_policy: str = "default-src 'none'; frame-ancestors 'none'"
    """what a browser lets the body do"""


Route = Callable[[], Response]
"""Called by the server's thread, so it does not block."""


class HttpServer:
    """Owns a thread with an event loop, on which everything here runs.

    Args:
        address: HOST:PORT, or [ADDRESS]:PORT of IPv6; port 0 leaves the choice to the system.
        routes: by path.
        on_failure: hears of a route that raises, and of a failure of the server itself. What clients do
            is none.
        patience_seconds: how long one connection may take in all.
    """

    def __init__(
        self,
        address: str,
        routes: Mapping[str, Route],
        *,
        on_failure: Callable[[BaseException], None],
        patience_seconds: float = 10.0,
    ) -> None:
        self.port = 0
        """TCP port that is listened on, once started."""
        self._address = address
        self._routes = routes
        self._on_failure = on_failure
        self._patience_seconds = patience_seconds
        self._open: set[asyncio.StreamWriter] = set()
        self._started: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop
        self._ending: asyncio.Event
        self._turn: asyncio.Lock
        self._thread = threading.Thread(target=self._run, name="http server", daemon=True)

    def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: the address is malformed, unknown or taken.
        """
        host, port = _host_and_port(self._address)
        self._host, self.port = host, port
        self._thread.start()
        self._started.result()

    def close(self) -> None:
        """End every connection and join the thread. Idempotent; does nothing before `start`."""
        # A failure may close everything from this very thread.
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            with suppress(RuntimeError):  # The loop is closed: the thread ends already.
                self._loop.call_soon_threadsafe(self._ending.set)
            self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - whatever it is, the owner hears of it
            self._on_failure(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ending, self._turn = asyncio.Event(), asyncio.Lock()
        try:
            server = await asyncio.start_server(self._talk, self._host, self.port, limit=MAX_HEAD_BYTES)
        except (OSError, ValueError) as error:  # ValueError: no name of a host can be like this.
            self._started.set_exception(
                ConfigError(f"--metrics-listen {self._address}: expected a free address; {error}")
            )
            return
        self.port = server.sockets[0].getsockname()[1]
        chosen = chosen_port(self._address, self.port)
        logger.info("status page on http://%s/%s", self._address, chosen)
        self._started.set_result(None)
        await self._ending.wait()
        server.close()
        for writer in self._open:
            writer.transport.abort()
        # Their connections are gone, so they end at once; cut off, they would complain.
        if talking := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(talking, timeout=1.0)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: one request, one answer."""
        if len(self._open) >= MAX_CONNECTIONS:
            writer.write(_BUSY)
            writer.close()
            return
        self._open.add(writer)
        # Without it `drain` would leave the answer of a client that does not read in memory.
        writer.transport.set_write_buffer_limits(high=0)
        try:
            async with asyncio.timeout(self._patience_seconds):
                writer.write(await self._answer(reader))
                await writer.drain()
            writer.close()
        except (OSError, asyncio.IncompleteReadError):
            # Too slow, or the way there is gone: "no route to host" is no ConnectionError.
            writer.transport.abort()
        except Exception as error:  # noqa: BLE001 - asyncio would only log it
            writer.transport.abort()
            self._on_failure(error)
        finally:
            self._open.discard(writer)

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _TOO_LONG
        async with self._turn:
            try:
                answer = _Exchange(head, self._routes).wfile.getvalue()
            except Exception as error:
                # Told here, where it cannot be taken for an error of the connection.
                self._on_failure(error)
                raise ConnectionAbortedError from error
            await asyncio.sleep(SECONDS_BETWEEN_ANSWERS)
        return answer


class _Exchange(BaseHTTPRequestHandler):
    """Reads a request's head from memory, and leaves the answer in memory."""

    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(code)d %(message)s\n"
    wfile: io.BytesIO

    def __init__(self, head: bytes, routes: Mapping[str, Route]) -> None:
        # Not the base's: that one talks to a socket, without a limit of time for the whole.
        self._routes = routes
        self._policy = Response(b"", "").content_security_policy
        self.client_address = ("", 0)
        self.rfile, self.wfile = io.BytesIO(head), io.BytesIO()
        self.handle_one_request()

    def do_GET(self) -> None:
        route = self._routes.get(self.path.partition("?")[0])
        if route is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        response = route()
        self._policy = response.content_security_policy
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    do_HEAD = do_GET  # noqa: N815 - the name that the base looks for

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        # The base's word for a method that is not here is one for methods that nobody knows.
        if code == HTTPStatus.NOT_IMPLEMENTED:
            code, message = HTTPStatus.METHOD_NOT_ALLOWED, None
        super().send_error(code, message, explain)

    def send_response_only(self, code: int, message: str | None = None) -> None:
        # What cannot be read counts as HTTP/0.9, whose answers have no headers to guard them.
        self.request_version = "HTTP/1.0"
        super().send_response_only(code, message)

    def end_headers(self) -> None:
        headers = {
            "Content-Security-Policy": self._policy,
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
            "Allow": "GET, HEAD",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        super().end_headers()

    def version_string(self) -> str:
        return "seedbed"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: whoever looks often would fill the log."""


def _host_and_port(address: str) -> tuple[str, int]:
    parts = host_and_port(address)
    if parts is None:
        raise ConfigError(f"--metrics-listen {address}: expected HOST:PORT")
    return parts
