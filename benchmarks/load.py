"""One window of closed-loop load on a server, from several client processes."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from benchmarks.children import Child, child, shared_flag
from benchmarks.measure import Meter, Window


@dataclass(frozen=True)
class Loaded:
    """What happened in the window."""

    window: Window
    """watches "server" and "clients" """
    clients: Sequence[Any]
    """each client's answer about the window"""
    looks: tuple[Any, Any]
    """what `look` saw when the window began and ended"""


def load(
    server: Child,
    main: Callable[..., None],
    setups: Sequence[Any],
    *,
    warm_up_seconds: float,
    seconds: float,
    look: Callable[[], Any] = lambda: None,
) -> Loaded:
    """Run a client process `main(connection, setup, stopped)` for each of the `setups`.

    A client says one word when it is ready, works until `stopped.value`, and then answers
    `(start, stop)`, times of `time.monotonic`, with what it saw in that window.
    """
    stopped = shared_flag()
    with ExitStack() as closing:
        clients = [
            closing.enter_context(child(f"client {index}", main, setup, stopped))
            for index, setup in enumerate(setups)
        ]
        for client in clients:
            client.answer()
        time.sleep(warm_up_seconds)
        before = look()
        meter = Meter({"server": [server.pid], "clients": [client.pid for client in clients]})
        time.sleep(seconds)
        window = meter.stop()
        after = look()
        stopped.value = 1
        answers = [client.ask(window.began, window.ended) for client in clients]
    return Loaded(window, answers, (before, after))
