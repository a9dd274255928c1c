"""A network that breaks when it is told to: a TCP relay between clients and one server."""

import queue
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

PATIENCE_SECONDS = 20.0
"""Longest wait for the relay's thread, which does nothing that takes long."""


class Proxy:
    """A TCP relay that can cut, reset, stall, sever and delay the connections it carries.

    One thread carries everything; the methods hand it what to do and return when it is done, so that
    what follows a call meets the broken network. Any thread may call them. What is written is expected
    to fit into the sockets' buffers, as the messages of a client that waits for each answer do.
    """

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.accepted = 0
        """Connections so far."""
        # All below is the thread's own, once it runs.
        self._peers: dict[socket.socket, socket.socket] = {}
        self._stalled: set[socket.socket] = set()
        self._held: list[socket.socket] = []
        self._severed = False
        self._delay_seconds = 0.0
        self._late: deque[tuple[float, socket.socket, bytes]] = deque()
        self._selector = selectors.DefaultSelector()
        self._commands: queue.SimpleQueue[tuple[Callable[[], None], Future[None]]] = queue.SimpleQueue()
        self._wake, self._woken = socket.socketpair()
        self._running = True
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> "Proxy":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._stop)
        self._thread.join()

    def cut(self) -> None:
        """Close every connection, as a process that ends does."""
        self._do(self._close_all)

    def reset(self) -> None:
        """Break every connection without a goodbye (RST)."""
        self._do(self._reset_all)

    def stall(self) -> None:
        """Carry nothing more on the connections of now, which stay open (half-open); later ones flow."""
        self._do(self._stall_all)

    def sever(self) -> None:
        """Carry nothing, and connect nobody, until `heal`: what is sent meanwhile arrives then, as TCP
        sends again what was not received."""
        self._do(self._sever)

    def heal(self) -> None:
        """Mend what `sever` did. What `stall` holds stays as it is."""
        self._do(self._heal)

    def delay(self, seconds: float) -> None:
        """Carry everything so much later from now on, in the same order."""

        def set_delay() -> None:
            self._delay_seconds = seconds

        self._do(set_delay)

    # The thread ---------------------------------------------------------------------------------

    def _do(self, command: Callable[[], None]) -> None:
        done: Future[None] = Future()
        self._commands.put((command, done))
        self._wake.send(b"!")
        done.result(PATIENCE_SECONDS)

    def _run(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        while self._running:
            for key, _ in self._selector.select(self._seconds_to_wait()):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._woken:
                    self._woken.recv(1)
                    command, done = self._commands.get()
                    command()
                    done.set_result(None)
                    break  # What was ready may be closed by now.
                else:
                    self._read(key.fileobj)
            self._carry_late()

    def _seconds_to_wait(self) -> float | None:
        if self._severed or not self._late:
            return None
        return max(self._late[0][0] - time.monotonic(), 0.0)

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        self.accepted += 1
        if self._severed:
            self._held.append(near)
        else:
            self._join(near)

    def _join(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(self._target)
        except OSError:
            near.close()
            return
        self._peers.update({near: far, far: near})
        for one in (near, far):
            self._selector.register(one, selectors.EVENT_READ)

    def _read(self, source: Any) -> None:
        if source not in self._peers:
            return  # Its peer closed a moment ago.
        try:
            data = source.recv(1 << 16)
        except OSError:
            data = b""
        if not self._delay_seconds and not self._late:
            self._carry(source, data)
            return
        due = time.monotonic() + self._delay_seconds
        self._late.append((max(due, self._late[-1][0]) if self._late else due, source, data))
        if not data:
            self._selector.unregister(source)  # Its end is told in its turn.

    def _carry_late(self) -> None:
        while self._late and not self._severed and self._late[0][0] <= time.monotonic():
            _, source, data = self._late.popleft()
            if source in self._peers and source not in self._stalled:
                self._carry(source, data)

    def _carry(self, source: socket.socket, data: bytes) -> None:
        """Hand on what `source` sent; nothing is its end."""
        try:
            self._peers[source].sendall(data)
        except OSError:
            data = b""
        if not data:
            self._close(source)

    def _close(self, one: socket.socket) -> None:
        for end in (one, self._peers.pop(one)):
            self._peers.pop(end, None)
            self._stalled.discard(end)
            self._unregister(end)
            end.close()

    def _unregister(self, end: socket.socket) -> None:
        if end in self._selector.get_map():
            self._selector.unregister(end)

    # What breaks --------------------------------------------------------------------------------

    def _close_all(self) -> None:
        while self._peers:
            self._close(next(iter(self._peers)))
        while self._held:
            self._held.pop().close()

    def _reset_all(self) -> None:
        for end in (*self._peers, *self._held):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._close_all()

    def _stall_all(self) -> None:
        self._stalled.update(self._peers)
        for end in self._peers:
            self._unregister(end)

    def _sever(self) -> None:
        self._severed = True
        for end in self._peers:
            self._unregister(end)

    def _heal(self) -> None:
        self._severed = False
        for end in self._peers.keys() - self._stalled - self._selector_ends():
            self._selector.register(end, selectors.EVENT_READ)
        while self._held:
            self._join(self._held.pop(0))

    def _selector_ends(self) -> set[Any]:
        return {key.fileobj for key in self._selector.get_map().values()}

    def _stop(self) -> None:
        self._close_all()
        self._running = False
        self._selector.close()
        for end in (self._listener, self._wake, self._woken):
            end.close()
