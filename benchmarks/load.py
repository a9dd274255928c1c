"""Closed-loop load on a server, from several client processes, in windows between which they idle."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
        self._server = server
        self._clients = clients
        self._paused = paused

    def window(
        self, seconds: float, *, warm_up_seconds: float, look: Callable[[], Any] = lambda: None
    ) -> Loaded:
        """Let the clients work, and measure that after the warm-up. They are idle when this returns."""
        self._paused.value = 0
        for client in self._clients:
            client.tell("work")
        for client in self._clients:
            client.answer()
        time.sleep(warm_up_seconds)
        before = look()
        pids = [client.pid for client in self._clients]
        meter = Meter({"server": [self._server.pid], "clients": pids})
        time.sleep(seconds)
        window = meter.stop()
        after = look()
        self._paused.value = 1
        # A client answers once it has paused.
        answers = [client.ask("seen", window.began, window.ended) for client in self._clients]
        return Loaded(window, answers, (before, after))


@contextmanager
def loading(server: Child, main: Callable[..., None], setups: Sequence[Any]) -> Iterator[Load]:
    """A client process `main(connection, setup, paused)` for each of the `setups`, ready and idle.

    A client says one word when it is ready, and then takes `turns`. In each it says one word when its
    first message is answered, and works until `paused.value`.
    """
    paused = shared_flag()
    with ExitStack() as closing:
        clients = [
            closing.enter_context(child(f"{server.name}'s client {index}", main, setup, paused))
            for index, setup in enumerate(setups)
        ]
        try:
            for client in clients:
                client.answer()
            yield Load(server, clients, paused)
        finally:
            # Where a window failed: a client that works does not see its pipe's end.
            paused.value = 1


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


def turns(connection: Connection, seen: Callable[[float, float], Any]) -> Iterator[None]:
    """A client's turns to work, until the parent closes the pipe or has ended. Between them it answers
    what it has `seen(start, stop)` in a window, times of `time.monotonic`."""
    for command, *window in commands(connection):
        if command == "work":
            yield
        else:
            connection.send(seen(*window))
