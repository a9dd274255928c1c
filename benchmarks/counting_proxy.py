"""A TCP relay for one connection that counts the bytes it carries."""

import socket
import threading
from contextlib import suppress
from typing import NamedTuple

CHUNK = 1 << 20


class Carried(NamedTuple):
    """Bytes so far."""

    up: int
    """from the client to the server"""
    down: int
    """from the server to the client"""


class CountingProxy:
    """Relays the first connection that is made to `address`. A context manager.

    Bytes are counted before they are passed on: what a message has caused is in `carried` once its
    answer has arrived. TCP's and IP's own headers are not in it.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        # Each written by one thread alone.
        self._up = 0
        self._down = 0
        self._ends: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> "CountingProxy":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Closing alone does not wake a thread that waits in `accept` or `recv`.
        for end in (self._listener, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for end in (self._listener, *self._ends):
            end.close()

    @property
    def carried(self) -> Carried:
        return Carried(self._up, self._down)

    def _run(self) -> None:
        try:
            near, _ = self._listener.accept()
        except OSError:  # closed before anybody came
            return
        far = socket.create_connection(("127.0.0.1", self._target_port))
        self._ends = [near, far]
        for end in self._ends:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=self._carry_down, args=(far, near), daemon=True)
        back.start()
        while data := _receive(near):
            self._up += len(data)
            _send(far, data)
        with suppress(OSError):
            far.shutdown(socket.SHUT_WR)
        back.join()

    def _carry_down(self, source: socket.socket, target: socket.socket) -> None:
        while data := _receive(source):
            self._down += len(data)
            _send(target, data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def _receive(source: socket.socket) -> bytes:
    try:
        return source.recv(CHUNK)
    except OSError:  # broken is as good as ended
        return b""


def _send(target: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # the other direction's end will tell
        target.sendall(data)
