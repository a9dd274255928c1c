"""A bare echo over the transport that seedbed has: completion queues, asked by the threads that wait."""

import time
from array import array
from multiprocessing.connection import Connection
from typing import Any

import grpc

from actor.call import Call
from benchmarks.children import raise_file_limit, with_port
from benchmarks.echo import OPTIONS
from benchmarks.streams import ACT, CHANNEL_OPTIONS, Plan, answer_windows
from learner.serving.completion_loop import CompletionLoop
from learner.serving.rpc import Rpc
from learner.serving.rpc_server import RpcServer


def run_queue_echo(connection: Connection, address: str, reply_bytes: int) -> None:
    """The server's process: says its address once it serves; ends with the benchmark."""
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
        await loop.create_future()

    loop = CompletionLoop()
    loop.run_until_complete(serve())


def run_calls(connection: Connection, plan: Plan, stopped: Any) -> None:
    """A client's process: `plan.step` and its answer on one call, as `run_streams` does it."""
    call = Call(plan.address, ACT, options=CHANNEL_OPTIONS, credentials=None, metadata=())
    stamps = array("d")
    _exchange(call, plan.step)
    connection.send("open")
    while not stopped.value:
        began = time.monotonic()
        _exchange(call, plan.step)
        stamps.extend((began, time.monotonic()))
    call.cancel()
    answer_windows(connection, stamps)


def _exchange(call: Call, message: bytes) -> None:
    if call.send_and_receive(message, _no_kick) is None:
        code, details = call.status(_no_kick)
        ended = f"{code.name}: {details}" if code is not grpc.StatusCode.OK else "its end"
        raise RuntimeError(f"expected an answer, found {ended}")


def _no_kick() -> None:
    """Nobody kicks."""
