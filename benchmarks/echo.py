"""A bare gRPC server that answers bytes with bytes: what any server on grpc.aio has to pay."""

import asyncio
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection

import grpc

from benchmarks.children import raise_file_limit, with_port

OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
)


def run_echo(connection: Connection, address: str, reply_bytes: int) -> None:
    """The server's process: says its address once it serves; ends when the pipe closes."""
    raise_file_limit()
    asyncio.run(_serve(connection, address, reply_bytes))


async def _serve(connection: Connection, address: str, reply_bytes: int) -> None:
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((_Echo(bytes(reply_bytes)),))
    port = server.add_insecure_port(address)
    await server.start()
    connection.send(with_port(address, port))
    closed = asyncio.Event()
    # Readable is also a pipe whose other end is closed, and nothing is ever sent over it.
    asyncio.get_running_loop().add_reader(connection.fileno(), closed.set)
    await closed.wait()
    await server.stop(grace=None)


class _Echo(grpc.GenericRpcHandler):
    """Any method as a stream of bytes both ways."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[bytes, bytes]":
        return grpc.stream_stream_rpc_method_handler(self._answer)

    async def _answer(
        self, requests: AsyncIterator[bytes], context: "grpc.aio.ServicerContext[bytes, bytes]"
    ) -> None:
        async for _ in requests:
            await context.write(self._reply)
