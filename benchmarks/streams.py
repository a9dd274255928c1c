"""Closed-loop streams with next to no client behind them: what loads a server, rather than a library.

Messages are bytes here, so that the loading side costs as little as gRPC itself does.
"""

import asyncio
import time
from array import array
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, cast

import grpc
import numpy as np

from benchmarks.children import raise_file_limit
from benchmarks.load import turns
from protos import inference_pb2 as pb

ACT = "/seedbed.v1.Inference/Act"

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Otherwise all channels of a process would share one connection.
    ("grpc.use_local_subchannel_pool", 1),
)

MAX_OPENING = 32
"""Streams that open at once: a burst of a thousand would wait for each other."""


@dataclass(frozen=True)
class Plan:
    """What each of `count` streams says."""

    address: str
    count: int
    step: bytes
    """the step message"""
    opening: bytes = b""
    """the message before; empty for none. With one, each step gets a sequence number of its own."""
    closing: bytes = b""


def run_streams(connection: Connection, plan: Plan, paused: Any) -> None:
    """A client process as `benchmarks.load.loading` has it, ready once all streams are open: what it has
    seen are `round_trips`."""
    raise_file_limit()
    stamps = array("d")
    # The streams live on between the turns, in which their loop does not run.
    with asyncio.Runner() as runner:
        streams = runner.run(_open(plan))
        connection.send("open")
        for over in turns(connection, paused, partial(round_trips, stamps)):
            runner.run(_all(stream.work(over, stamps) for stream in streams))
        runner.run(_all(stream.close() for stream in streams))


def round_trips(stamps: "array[float]", start: float, stop: float) -> np.ndarray:
    """Seconds, float64, of the round trips that ended in the window.

    Args:
        stamps: when each round trip began and ended, one after the other, of `time.monotonic`.
    """
    times = np.frombuffer(stamps).reshape(-1, 2)
    inside = times[(times[:, 1] >= start) & (times[:, 1] < stop)]
    return inside[:, 1] - inside[:, 0]


async def _open(plan: Plan) -> "list[_Stream]":
    opening = asyncio.Semaphore(MAX_OPENING)
    return await asyncio.gather(*(_Stream.open(plan, opening) for _ in range(plan.count)))


async def _all(actions: Iterable[Awaitable[None]]) -> None:
    await asyncio.gather(*actions)


class _Stream:
    """One stream in a connection of its own."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._channel = grpc.aio.insecure_channel(plan.address, options=CHANNEL_OPTIONS)
        # Without serializers gRPC hands bytes through.
        self._call: Any = self._channel.stream_stream(ACT)()
        self._message = pb.ClientMessage.FromString(plan.step) if plan.opening else None
        self._sequence = 0

    @classmethod
    async def open(cls, plan: Plan, opening: asyncio.Semaphore) -> "_Stream":
        async with opening:
            stream = cls(plan)
            # A stream that has nothing to open with is open once its first step is answered.
            await stream._round_trip(plan.opening or plan.step)
        return stream

    async def work(self, over: Callable[[], bool], stamps: "array[float]") -> None:
        """One step and its answer after the other."""
        while True:
            message = self._next_step()
            began = time.monotonic()
            await self._round_trip(message)
            stamps.extend((began, time.monotonic()))
            if over():
                return

    async def close(self) -> None:
        if self._plan.closing:
            await self._call.write(self._plan.closing)
        await self._call.done_writing()
        await self._call.code()
        await self._channel.close()

    def _next_step(self) -> bytes:
        if self._message is None:
            return self._plan.step
        self._sequence += 1
        self._message.step.sequence = self._sequence
        return self._message.SerializeToString()

    async def _round_trip(self, message: bytes) -> bytes:
        await self._call.write(message)
        answer = await self._call.read()
        if answer is grpc.aio.EOF:
            raise RuntimeError(
                f"expected an answer, found the stream's end: {await self._call.code()}, "
                f"{await self._call.details()}"
            )
        return cast(bytes, answer)
