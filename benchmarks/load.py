"""Closed-loop load on a server, from several client processes, in windows between which they idle."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.children import Child, child, commands, shared_flag
from benchmarks.measure import Meter, Window


@dataclass(frozen=True)
class Loaded:
    """What happened in a window."""

    window: Window
    """watches "server" and "clients" """
    clients: Sequence[Any]
    """each client's answer about the window"""
    looks: tuple[Any, Any]
    """what `look` saw when the window began and ended"""


class Load:
    """Clients that work during `window`, and wait for the next one without any CPU time."""

    def __init__(self, server: Child, clients: Sequence[Child], paused: Any) -> None:
        self.clients = clients
        self._server = server
        self._paused = paused

    def window(
        self, seconds: float, *, warm_up_seconds: float, look: Callable[[], Any] = lambda: None
    ) -> Loaded:
        """Let the clients work, and measure that after the warm-up. They are idle when this returns."""
        self._paused.value = 0
        for client in self.clients:
            client.tell("work")
        for client in self.clients:
            client.answer()
        time.sleep(warm_up_seconds)
        before = look()
        pids = [client.pid for client in self.clients]
        meter = Meter({"server": [self._server.pid], "clients": pids})
        time.sleep(seconds)
        window = meter.stop()
        after = look()
        self._paused.value = 1
        # A client answers once it has paused.
        answers = [client.ask("seen", window.began, window.ended) for client in self.clients]
        return Loaded(window, answers, (before, after))


@contextmanager
def loading(server: Child, main: Callable[..., None], setups: Sequence[Any]) -> Iterator[Load]:
    """A client process `main(connection, setup, paused)` for each of the `setups`, ready and idle.

    A client says one word when it is ready, takes `turns`, and closes what it has open.
    """
    paused = shared_flag()
    with ExitStack() as closing:
        clients = [
            closing.enter_context(child(f"{server.name}'s client {index}", _run, main, setup, paused))
            for index, setup in enumerate(setups)
        ]
        try:
            for client in clients:
                client.answer()
            yield Load(server, clients, paused)
            # Before their pipes are closed: soon after that they are killed, and what they have open
            # then stays with the server.
            for client in clients:
                client.tell("finish")
            for client in clients:
                client.answer()
        finally:
            # Where a window failed: a client that works does not see its pipe's end.
            paused.value = 1


def _run(connection: Connection, main: Callable[..., None], setup: Any, paused: Any) -> None:
    """A client's process."""
    main(connection, setup, paused)
    # Nobody hears it where the parent closed the pipe instead, or has ended.
    with suppress(OSError):
        connection.send("finished")


def load(
    server: Child,
    main: Callable[..., None],
    setups: Sequence[Any],
    *,
    warm_up_seconds: float,
    seconds: float,
    look: Callable[[], Any] = lambda: None,
) -> Loaded:
    """One window of clients as `loading` has them."""
    with loading(server, main, setups) as clients:
        return clients.window(seconds, warm_up_seconds=warm_up_seconds, look=look)


def turns(
    connection: Connection, paused: Any, seen: Callable[[float, float], Any]
) -> Iterator[Callable[[], bool]]:
    """A client's work, until the parent tells it to finish, closes the pipe or has ended: at each `over`
    that this yields, exchange one message after the other until `over()`, which is asked after each.

    A turn has two such parts: one exchange, after which the parent hears that the client works, and
    those until the pause. The first never ends within a window: it may have begun in the turn before.
    Between turns this answers what the client has `seen(start, stop)` in a window, times of
    `time.monotonic`.
    """
    for command, *window in commands(connection):
        if command == "finish":
            return
        if command == "seen":
            connection.send(seen(*window))
            continue
        yield lambda: True
        connection.send("working")
        yield lambda: bool(paused.value)
