"""A client that says whatever a test wants on the wire, right or wrong."""

import queue
from typing import Any

import grpc
import numpy as np

from protos import PROTOCOL_MINOR, PROTOCOL_VERSION, inference_pb2_grpc, specs, tensors
from protos import inference_pb2 as pb
from tests.fakes import PATIENCE_SECONDS, SPEC, observation


def opening(num_environments: int = 1, **changes: Any) -> pb.Open:
    """A good Open, but for `changes`."""
    fields = {
        "protocol_version": PROTOCOL_VERSION,
        "protocol_minor": PROTOCOL_MINOR,
        "num_environments": num_environments,
        "spec": specs.to_proto(SPEC),
        "mode": pb.TRAIN,
        "client": "a test",
        **changes,
    }
    return pb.Open(**fields)


def step(
    sequence: int,
    *numbers: float,
    environments: list[int] | None = None,
    flags: int = 0,
) -> pb.Step:
    """A good Step of `SPEC`, one row for each number, of the environments from 0 on or those given."""
    rows = len(numbers)
    indices = range(rows) if environments is None else environments
    return pb.Step(
        sequence=sequence,
        environment=np.array(indices, tensors.INDEX).tobytes(),
        reward=np.zeros(rows, tensors.REWARD).tobytes(),
        flags=np.full(rows, flags, tensors.FLAGS).tobytes(),
        observation=[observation(*numbers).tobytes()],
    )


class Stream:
    """One stream on a connection of its own."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self._outgoing: queue.SimpleQueue[pb.ClientMessage | None] = queue.SimpleQueue()
        stub = inference_pb2_grpc.InferenceStub(self._channel)
        self._call: Any = stub.Act(iter(self._outgoing.get, None), timeout=PATIENCE_SECONDS)

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self._outgoing.put(None)
        self._call.cancel()
        self._channel.close()

    def send(self, message: pb.Open | pb.Step | pb.Close | None = None) -> None:
        """Send a message of that kind; of none at all without one."""
        kind = {} if message is None else {type(message).__name__.lower(): message}
        self._outgoing.put(pb.ClientMessage(**kind))

    def open(self, num_environments: int = 1, **changes: Any) -> pb.Opened:
        self.send(opening(num_environments, **changes))
        message = next(self._call)
        assert message.WhichOneof("kind") == "opened"
        opened: pb.Opened = message.opened
        return opened

    def act(self, message: pb.Step) -> list[int]:
        """Send a step and read its actions."""
        self.send(message)
        sequence, actions = self.actions()
        assert sequence == message.sequence
        return actions

    def actions(self) -> tuple[int, list[int]]:
        """Sequence and actions of the next answer."""
        message = next(self._call)
        assert message.WhichOneof("kind") == "actions"
        assert message.actions.policy_version == 7
        return message.actions.sequence, np.frombuffer(message.actions.action, np.int64).tolist()

    def half_close(self) -> None:
        self._outgoing.put(None)

    def cut(self) -> None:
        """Break the connection."""
        self._channel.close()
        self._outgoing.put(None)

    def ended(self) -> tuple[grpc.StatusCode, str]:
        """Status and details of the stream's end, which is awaited; no message may come before it."""
        try:
            message = next(self._call)
        except StopIteration:
            return self._call.code(), self._call.details()
        except grpc.RpcError:
            return self._call.code(), self._call.details()
        raise AssertionError(f"expected the stream's end, found {message}")


def refused(address: str, *messages: Any) -> tuple[grpc.StatusCode, str]:
    """How the learner ends a stream that sends `messages`."""
    with Stream(address) as stream:
        for message in messages:
            stream.send(message)
        return stream.ended()


def http2_call(path: str, window: int) -> bytes:
    """A call with one empty message as HTTP/2 has it, of a client that takes in so many bytes of data.

    A window above HTTP/2's own of 65,535 is the connection's too.
    """

    def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload

    fields = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": path.encode(),
        b":authority": b"x",
        b"te": b"trailers",
        b"content-type": b"application/grpc",
    }
    block = b"".join(
        b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in fields.items()
    )
    windows = frame(4, 0, 0, b"\0\4" + window.to_bytes(4))
    if window > 65_535:
        windows += frame(8, 0, 0, (window - 65_535).to_bytes(4))
    call = frame(1, 4, 1, block) + frame(0, 1, 1, bytes(5))
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + windows + call
