"""What a client does wrong ends its own stream, with what was expected and found, and nothing else."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from actor.client import InferenceClient
from actor.timestep import restart, transition
from learner.config import LearnerOptions
from protos import inference_pb2 as pb
from protos import specs
from tests.fakes import LogLines
from tests.integration.scripted import ACTIONS, OBSERVATIONS, SPEC
from tests.integration.serving import ServingLearner
from tests.learner.serving.wire import Stream, opening, step

OTHER_SPEC = specs.EnvironmentSpec((specs.ArraySpec("", (3,), np.dtype(np.float32)),), SPEC.action)


def opened(stream: Stream) -> None:
    stream.open(2, spec=specs.to_proto(SPEC))


def send_opening(**changes: Any) -> Callable[[Stream], None]:
    good = {"spec": specs.to_proto(SPEC), "num_environments": 2}
    return lambda stream: stream.send(opening(**{**good, **changes}))


def send_step(**changes: Any) -> Callable[[Stream], None]:
    def send(stream: Stream) -> None:
        opened(stream)
        message = step(1, 5, 6, flags=pb.FIRST)
        for name, value in changes.items():
            if name == "observation":
                message.observation[:] = value
            else:
                setattr(message, name, value)
        stream.send(message)

    return send


def send_step_first(stream: Stream) -> None:
    stream.send(step(1, 5))


def send_two_openings(stream: Stream) -> None:
    opened(stream)
    stream.send(opening(spec=specs.to_proto(SPEC)))


def send_nothing_at_all(stream: Stream) -> None:
    opened(stream)
    stream.send()


def reward(*values: float) -> bytes:
    return np.array(values, np.float32).tobytes()


def environments(*values: int) -> bytes:
    return np.array(values, np.int32).tobytes()


CASES: dict[str, tuple[Callable[[Stream], None], str]] = {
    "other specs": (
        send_opening(spec=specs.to_proto(OTHER_SPEC)),
        r"spec: expected observation \(float32\[2\].*found observation \(float32\[3\]",
    ),
    "no environments": (
        send_opening(num_environments=0),
        "num_environments: expected at least 1, found 0",
    ),
    "other protocol": (send_opening(protocol_version=99), "protocol: expected 1.*found 99"),
    "mode that is not served": (send_opening(mode=pb.EVALUATE), "expected TRAIN.*found EVALUATE"),
    "step before open": (send_step_first, "expected Open as the stream's first message, found step"),
    "second open": (send_two_openings, "expected Step or Close after Open, found open"),
    "empty message": (send_nothing_at_all, "expected Step or Close after Open, found None"),
    "observation too short": (
        send_step(observation=[b"1234567"]),
        "expected 16 bytes.*found 7",
    ),
    "leaf too many": (send_step(observation=[b"", b""]), "expected 1 leaves, found 2"),
    "rewards too short": (send_step(reward=reward(0)), "reward: expected 8 bytes.*found 4"),
    "flags too long": (send_step(flags=bytes(3)), "flags: expected 2 bytes.*found 3"),
    "NaN reward": (
        send_step(reward=reward(0, float("nan"))),
        "environment 1: expected a finite reward, found NaN or infinity",
    ),
    "infinite observation": (
        send_step(observation=[np.full(4, np.inf, np.float32).tobytes()]),
        "observation.*expected finite.*found",
    ),
    "unknown environment": (
        send_step(environment=environments(0, 2)),
        "environment: expected indices of 0 to 1, found 0 to 2",
    ),
    "negative environment": (send_step(environment=environments(-1, 0)), "0 to 1, found -1 to 0"),
    "environment twice": (
        send_step(environment=environments(1, 1)),
        "environment 1: expected one row in a step, found several",
    ),
}


class GoodClient:
    """Another actor, to be left alone."""

    def __init__(self, address: str) -> None:
        self._client = InferenceClient(address, OBSERVATIONS, ACTIONS, name="the good one")
        self._sum = 0
        self._next = restart(np.array([9, 0], np.float32))
        self._row = 0

    def __enter__(self) -> "GoodClient":
        self._client.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._client.__exit__(*error)

    def step(self) -> None:
        """Act once; the action tells whether its memory is whole."""
        self._sum += 9 + self._row
        assert self._client.act(self._next) == self._sum
        self._row += 1
        self._next = transition(np.array([9, self._row], np.float32), 1.0, False, False)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingLearner]:
    folder = tmp_path_factory.mktemp("learner")
    # The good client's row and the bad one's two fit into one batch, and meet in it.
    chosen = LearnerOptions(unroll_length=400, batch_size=2, inference_batch_size=4)
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        ServingLearner(f"unix:{folder}/s", folder, monkeypatch, chosen) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def good(serving: ServingLearner) -> Iterator[GoodClient]:
    with GoodClient(serving.listen) as client:
        yield client


@pytest.mark.parametrize("case", CASES)
def test_mistake_ends_its_own_stream(case: str, serving: ServingLearner, good: GoodClient) -> None:
    make_mistake, expected = CASES[case]
    good.step()
    with LogLines("learner") as log, Stream(serving.listen) as stream:
        make_mistake(stream)
        code, details = stream.ended()
        good.step()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert re.search(expected, details), details
    (line,) = log.lines()
    assert line.endswith(f": INVALID_ARGUMENT: {details}")


@pytest.mark.parametrize("good_messages", [0, 1])
def test_bytes_that_are_no_message(
    good_messages: int, serving: ServingLearner, good: GoodClient
) -> None:
    good.step()
    first = pb.ClientMessage(open=opening(spec=specs.to_proto(SPEC))).SerializeToString()
    messages = [*[first] * good_messages, b"\xff" * 100]
    with LogLines("learner") as log, grpc.insecure_channel(serving.listen) as channel:
        method: Any = channel.stream_stream("/seedbed.v1.Inference/Act")
        call = method(iter(messages), timeout=20)
        with pytest.raises(grpc.RpcError) as raised:
            list(call)
        good.step()
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert raised.value.details() == "expected a ClientMessage, found bytes that are none"
    assert len(log.lines()) == 1
