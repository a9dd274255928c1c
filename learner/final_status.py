"""How a gRPC stream ended, as its other side said it."""

from typing import Any

import grpc

_WRITE_FAILED = "Internal error from Core"
"""gRPC's details, with INTERNAL, where a write met the stream's end."""

Status = tuple[grpc.StatusCode, str]


class FinalStatus:
    """Keeps a stream's status and details from the moment it ends: a write that meets the stream's end
    puts an internal error of its own in their place.

    Args:
        call: of `grpc.aio`.
        unknown: what `value` is until the end, and if gRPC has put its own in the place from the start.
    """

    def __init__(self, call: Any, unknown: Status) -> None:
        self.value = unknown
        call.add_done_callback(self._note)

    def _note(self, call: Any) -> None:
        async def read() -> Status:
            return await call.code(), await call.details() or "no details"

        # A finished call's coroutines do not wait, so that one step runs them to their end; a task would
        # run too late.
        try:
            read().send(None)
        except StopIteration as known:
            if known.value[1] != _WRITE_FAILED:
                self.value = known.value
