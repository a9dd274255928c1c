"""A bare echo over the transport that seedbed has: completion queues, asked by the threads that wait."""

import asyncio
import threading
import time
from array import array
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import grpc

from actor.call import Call
from benchmarks.children import raise_file_limit, with_port
from benchmarks.echo import OPTIONS
from benchmarks.load import turns
from benchmarks.streams import ACT, CHANNEL_OPTIONS, Plan, round_trips
from learner.serving.completion_loop import CompletionLoop
from learner.serving.rpc import Rpc
from learner.serving.rpc_server import RpcServer


def run_queue_echo(connection: Connection, address: str, reply_bytes: int) -> None:
    """The server's process: says its address once it serves; ends when the pipe closes."""
    raise_file_limit()
    reply = bytes(reply_bytes)

    async def answer(rpc: Rpc) -> None:
        over = loop.create_future()

        def take(message: bytes | None) -> None:
            if message is None:
                over.set_result(None)
            else:
                rpc.send(reply)
                rpc.receive(take)

        rpc.receive(take)
        await over

    async def serve() -> None:
        server = RpcServer(loop, OPTIONS)
        server.route(ACT, answer)
        port = server.bind(address)
        server.start()
        connection.send(with_port(address, port))
        closed = asyncio.Event()
        threading.Thread(
            target=_when_closed,
            args=(connection, lambda: loop.call_soon_threadsafe(closed.set)),
            name="pipe",
            daemon=True,
        ).start()
        await closed.wait()
        await server.stop(grace=0.0)

    loop = CompletionLoop()
    loop.run_until_complete(serve())
    loop.close()


def _when_closed(connection: Connection, then: Callable[[], object]) -> None:
    """In a thread, as the loop waits for no files. Nothing is ever sent over the pipe."""
    connection.poll(None)
    then()


def run_calls(connection: Connection, plan: Plan, paused: Any) -> None:
    """A client's process: `plan.step` and its answer on one call, as `run_streams` does it."""
    call = Call(plan.address, ACT, options=CHANNEL_OPTIONS, credentials=None, metadata=())
    stamps = array("d")
    _exchange(call, plan.step)
    connection.send("open")
    for over in turns(connection, paused, partial(round_trips, stamps)):
        _work(call, plan.step, over, stamps)
    call.cancel()


def _work(call: Call, step: bytes, over: Callable[[], bool], stamps: "array[float]") -> None:
    while True:
        began = time.monotonic()
        _exchange(call, step)
        stamps.extend((began, time.monotonic()))
        if over():
            return


def _exchange(call: Call, message: bytes) -> None:
    if call.send_and_receive(message, _no_kick) is None:
        code, details = call.status(_no_kick)
        ended = f"{code.name}: {details}" if code is not grpc.StatusCode.OK else "its end"
        raise RuntimeError(f"expected an answer, found {ended}")


def _no_kick() -> None:
    """Nobody kicks."""
