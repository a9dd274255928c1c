"""One stream's writes: never two at once, whoever gave up waiting for the first."""

import asyncio
from typing import Any

import pytest

from actor.stream import Stream
from protos import inference_pb2 as pb


class SlowCall:
    """A gRPC call whose writes take until `sent` is set, and which refuses a second one meanwhile."""

    def __init__(self) -> None:
        self.sent = asyncio.Event()
        self.written: list[str | None] = []
        self._writing = False

    def add_done_callback(self, callback: Any) -> None:
        pass

    async def write(self, message: pb.ClientMessage) -> None:
        if self._writing:
            raise asyncio.InvalidStateError("expected one write at a time")
        self._writing = True
        await self.sent.wait()
        self._writing = False
        self.written.append(message.WhichOneof("kind"))

    async def done_writing(self) -> None:
        pass

    async def code(self) -> int:
        return 0

    def cancel(self) -> None:
        pass


class NoChannel:
    async def close(self) -> None:
        pass


@pytest.mark.parametrize("error", ["", "the environment broke"])
def test_close_follows_a_step_that_is_still_on_its_way(error: str) -> None:
    async def story() -> list[str | None]:
        call = SlowCall()
        stream = Stream(NoChannel(), call)  # type: ignore[arg-type]  # a fake
        step = asyncio.create_task(stream.exchange(pb.Step(sequence=1), 60.0))
        await asyncio.sleep(0)
        close = asyncio.create_task(stream.close(error))
        await asyncio.sleep(0)
        call.sent.set()
        await close
        step.cancel()
        return call.written

    assert asyncio.run(story()) == ["step", "close"]
