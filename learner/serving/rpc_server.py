"""A gRPC server on a `CompletionLoop`: each call of a client becomes a task of the loop."""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc._cython import cygrpc

from learner.serving.completion_loop import CompletionLoop
from learner.serving.connections import Listener, cut_off, listener
from learner.serving.rpc import Rpc
from protos.errors import RequestError, to_status

logger = logging.getLogger(__name__)

_LET_GO_SECONDS = 1.0
"""How long a connection is waited for at most when all its calls have ended."""

Handler = Callable[[Rpc], Awaitable[None]]
"""Carries a call to its end; what it leaves unfinished ends with OK."""


class Refused(Exception):
    """Ends a call with a status."""

    def __init__(self, status: grpc.StatusCode, details: str = "") -> None:
        super().__init__(details)
        self.status = status


class RpcServer:
    """Listens, and runs a handler for each call. Used on the loop's thread.

    Args:
        loop: where it lives.
        options: gRPC's, of its channels.
        authorize: says why a call is refused, or None; all are let in without it.
        max_calls: most calls at once; more are turned away.
    """

    def __init__(
        self,
        loop: CompletionLoop,
        options: Sequence[tuple[str, Any]],
        *,
        authorize: Callable[[Rpc], RequestError | None] | None = None,
        max_calls: int | None = None,
    ) -> None:
        self._loop = loop
        self._authorize = authorize
        self._max_calls = max_calls
        self._routes: dict[str, Handler] = {}
        self._generic: list[grpc.GenericRpcHandler] = []
        self._tasks: dict[Rpc, asyncio.Task[None]] = {}
        self._begun = False
        self._listeners: set[Listener] = set()
        self._stopping = False
        self._stopped = asyncio.Event()
        self._server = cygrpc.Server([(name.encode(), value) for name, value in options], False)
        self._server.register_completion_queue(loop.queue)

    def route(self, method: str, handler: Handler) -> None:
        """Let `handler` carry the calls of `method`, /package.Service/Method."""
        self._routes[method] = handler

    def add(self, add_to_server: Callable[[Any, Any], None], servicer: object) -> None:
        """Serve what gRPC's tools have generated for `grpc.aio`, by its own function, such as
        `add_HealthServicer_to_server`."""
        add_to_server(servicer, self)

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """As of `grpc.aio.Server`."""
        self._generic.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """As of `grpc.aio.Server`: the same methods as by `add_generic_rpc_handlers`."""

    def bind(self, address: str, credentials: grpc.ServerCredentials | None = None) -> int:
        """Listen on HOST:PORT or unix:PATH; plain text without credentials.

        Returns:
            The TCP port.

        Raises:
            RuntimeError: it cannot.
        """
        arguments = () if credentials is None else (credentials._credentials,)  # type: ignore[attr-defined] # as grpc's own
        port = int(self._server.add_http2_port(address.encode(), *arguments))
        if not port:
            raise RuntimeError(f"Failed to bind to address {address}")
        self._listeners.add(listener(address, port))
        return port

    def start(self) -> None:
        self._begin()
        self._request()

    async def stop(self, grace: float) -> None:
        """Take no more calls, end those that are left after `grace` seconds, and free the addresses:
        also of a server that was not started."""
        self._stopping = True
        if not self._begun:
            self._begin()  # gRPC frees the addresses of no other.
        self._server.shutdown(self._loop.queue, self._shut_down)
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=grace)
        self._server.cancel_all_calls()
        try:
            await asyncio.wait_for(self._stopped.wait(), _LET_GO_SECONDS)
        except TimeoutError:
            # gRPC closes no connection while it writes, which has no end where the client reads nothing.
            cut = cut_off(self._listeners)
            logger.warning("%d connections were cut off: what was sent on them was not read", cut)
            await self._stopped.wait()
        self._server.destroy()

    def _begin(self) -> None:
        self._begun = True
        self._server.start()

    # Calls --------------------------------------------------------------------------------------

    def _request(self) -> None:
        """Ask for the next call."""
        if self._stopping:
            return  # One that had come before is on its way here still, and gRPC refuses to be asked.
        self._server.request_call(self._loop.queue, self._loop.queue, self._requested)

    def _requested(self, event: Any) -> None:
        if not event.success:
            return  # The server shuts down.
        self._loop.wake_by(event.call)
        self._request()
        rpc = Rpc(event, self._cancel)
        task = self._loop.create_task(self._carry(rpc))
        self._tasks[rpc] = task
        task.add_done_callback(lambda _: self._tasks.pop(rpc))

    def _cancel(self, rpc: Rpc) -> None:
        if rpc in self._tasks:
            self._tasks[rpc].cancel()

    def _shut_down(self, event: object) -> None:
        self._stopped.set()

    async def _carry(self, rpc: Rpc) -> None:
        try:
            await self._handler(rpc)(rpc)
        except Refused as refused:
            rpc.finish(refused.status, str(refused))
        except DecodeError:
            rpc.finish(grpc.StatusCode.INVALID_ARGUMENT, "expected another message, or a whole one")
        except Exception:
            # Whatever it is, only this call ends, and its client is told nothing of the cause.
            logger.exception("%s: unexpected failure in %s", rpc.peer(), rpc.method)
            rpc.finish(grpc.StatusCode.UNKNOWN, "unexpected failure in the learner; see its log")
        rpc.finish(grpc.StatusCode.OK)

    def _handler(self, rpc: Rpc) -> Handler:
        if self._max_calls is not None and len(self._tasks) > self._max_calls:
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls at once")
        if self._authorize is not None and (error := self._authorize(rpc)) is not None:
            raise Refused(to_status(error), str(error))
        if rpc.method in self._routes:
            return self._routes[rpc.method]
        for generic in self._generic:
            if (handler := generic.service(rpc)) is not None:  # type: ignore[arg-type] # it has a method
                return _Generated(handler).carry
        raise Refused(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")


class _Generated:
    """A method of a service that gRPC's tools have generated, for `grpc.aio`."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler

    async def carry(self, rpc: Rpc) -> None:
        handler = self._handler
        request = self._requests(rpc) if handler.request_streaming else await self._request(rpc)
        behaviour = (
            handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        )
        answer = behaviour(request, _Context())
        if inspect.isasyncgen(answer):
            async with aclosing(answer):
                async for message in answer:
                    await rpc.write(handler.response_serializer(message))
        else:
            await rpc.write(handler.response_serializer(await answer))

    async def _request(self, rpc: Rpc) -> Any:
        data = await rpc.read()
        if data is None:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "expected a message, found none")
        return self._handler.request_deserializer(data)

    async def _requests(self, rpc: Rpc) -> AsyncIterator[Any]:
        while (data := await rpc.read()) is not None:
            yield self._handler.request_deserializer(data)


class _Context:
    """What such a method uses of `grpc.aio.ServicerContext`."""

    async def abort(self, status: grpc.StatusCode, details: str = "") -> None:
        raise Refused(status, details)
