"""Clients that load a server work in their windows, and wait between them."""

import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from benchmarks.children import Child, address, child, commands, shared_flag
from benchmarks.echo import run_echo
from benchmarks.load import Load, loading, turns
from benchmarks.queue_echo import run_calls, run_queue_echo
from benchmarks.serving_actor import _stopped
from benchmarks.streams import Plan, round_trips, run_streams
from protos.errors import WorkerFailure


def _idle(connection: Connection) -> None:
    for _ in commands(connection):
        pass


def _note(connection: Connection, number: int, paused: Any) -> None:
    """A client that notes its turns, and answers which window it was asked for and when they were."""
    began = array("d")
    ended = array("d")

    def seen(start: float, stop: float) -> tuple[int, float, float, list[tuple[float, float]]]:
        # A turn has two parts.
        return number, start, stop, list(zip(began[::2], ended[1::2], strict=True))

    connection.send("ready")
    for over in turns(connection, paused, seen):
        began.append(time.monotonic())
        while not over():
            pass
        ended.append(time.monotonic())


def _fail(connection: Connection, number: int, paused: Any) -> None:
    connection.send("ready")
    for _ in turns(connection, paused, lambda start, stop: None):
        raise SystemExit(number)


def _look_at_the_pipe(connection: Connection, setup: None, paused: Any) -> None:
    """A client that fails if its pipe is closed when its turns are over."""
    connection.send("ready")
    for over in turns(connection, paused, lambda start, stop: None):
        while not over():
            pass
    # Nothing is sent after the last turn: readable is the pipe's end.
    if connection.poll():
        raise SystemExit(1)


@contextmanager
def noting(server: Child) -> Iterator[Load]:
    with loading(server, _note, [0, 1]) as clients:
        yield clients


def test_each_load_works_in_its_own_windows_alone() -> None:
    with child("server", _idle) as server, noting(server) as one, noting(server) as other:
        windows = [load.window(0.01, warm_up_seconds=0.0) for load in (one, other, one, other)]
    turns_of = [[turn for _, _, _, turns in loaded.clients for turn in turns] for loaded in windows]
    # Two turns of two clients each.
    first, second = sorted(turns_of[2]), sorted(turns_of[3])
    assert len(first) == len(second) == 4
    in_order = [*first[:2], *second[:2], *first[2:], *second[2:]]
    for earlier, later in zip(range(0, 6, 2), range(2, 8, 2), strict=True):
        ends = [end for _, end in in_order[earlier : earlier + 2]]
        begins = [begin for begin, _ in in_order[later : later + 2]]
        assert max(ends) < min(begins)


def test_a_window_is_within_the_turns_of_all_clients() -> None:
    looks: list[float] = []

    def look() -> float:
        looks.append(time.monotonic())
        return looks[-1]

    with child("server", _idle) as server, noting(server) as load:
        loaded = load.window(0.01, warm_up_seconds=0.0, look=look)
    window = loaded.window
    assert [number for number, *_ in loaded.clients] == [0, 1]
    for _, start, stop, ((began, ended),) in loaded.clients:
        assert (start, stop) == (window.began, window.ended)
        assert began < window.began
        assert window.ended < ended
    assert loaded.looks == tuple(looks)
    assert looks[0] <= window.began
    assert window.ended <= looks[1]
    assert window.cpu_seconds.keys() == {"server", "clients"}


def test_a_client_that_fails_is_missed_by_name() -> None:
    with (
        child("server", _idle) as server,
        pytest.raises(WorkerFailure, match="server's client 0 ended with status 3"),
        loading(server, _fail, [3]) as load,
    ):
        load.window(0.01, warm_up_seconds=0.0)


def test_clients_are_awaited_before_their_pipes_are_closed() -> None:
    with child("server", _idle) as server, loading(server, _look_at_the_pipe, [None]) as load:
        load.window(0.01, warm_up_seconds=0.0)
    assert [client.exit_status for client in load.clients] == [0]


def test_clients_end_though_their_window_failed() -> None:
    def look() -> None:
        raise RuntimeError("the look failed")

    with (
        child("server", _idle) as server,
        pytest.raises(RuntimeError, match="the look failed"),
        noting(server) as load,
    ):
        load.window(0.01, warm_up_seconds=0.0, look=look)
    # Not killed, as they would be if they still worked.
    assert [client.exit_status for client in load.clients] == [0, 0]


def test_an_actor_waits_between_its_turns_and_stops_after_them() -> None:
    parent, connection = Pipe()
    paused = shared_flag()
    stopped = _stopped(connection, paused, lambda start, stop: np.array([start, stop]))
    parent.send(("work",))
    assert not next(stopped)
    assert not parent.poll()  # its first step is not answered yet
    assert not next(stopped)
    assert parent.recv() == "working"
    assert not next(stopped)
    paused.value = 1
    parent.send(("seen", 1.0, 2.0))
    parent.send(("work",))
    assert not next(stopped)
    assert parent.recv().tolist() == [1.0, 2.0]
    paused.value = 0
    assert not next(stopped)
    assert parent.recv() == "working"
    paused.value = 1
    parent.close()
    assert next(stopped)


@pytest.mark.parametrize(
    ("serve", "call"), [(run_echo, run_streams), (run_queue_echo, run_calls)], ids=["aio", "queue"]
)
@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_an_echo_goes_on_after_a_pause(
    serve: Callable[..., None], call: Callable[..., None], transport: Any
) -> None:
    with address(transport) as listen, child("echo", serve, listen, 7) as server:
        plan = Plan(server.answer(), count=1, step=b"step")
        with loading(server, call, [plan, plan]) as load:
            windows = [load.window(0.2, warm_up_seconds=0.0) for _ in range(2)]
    for loaded in windows:
        for seconds in loaded.clients:
            assert len(seconds) > 0
            assert (seconds > 0).all()
    # None was killed.
    assert [process.exit_status for process in (server, *load.clients)] == [0, 0, 0]


def test_round_trips_are_those_that_end_in_the_window() -> None:
    # Ended before, at its beginning, within, at its end and after it.
    stamps = array("d", [0.0, 0.5, 0.5, 1.0, 1.25, 1.5, 1.5, 2.0, 1.75, 3.0])
    assert round_trips(stamps, 1.0, 2.0).tolist() == [0.5, 0.25]
