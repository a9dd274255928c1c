"""Environments of no cost keep the contract, and the sizes of messages are the real client's."""

from collections.abc import Iterator
from concurrent import futures

import grpc
import numpy as np
import pytest

from actor.client import InferenceClient
from benchmarks.streams import ACT
from benchmarks.worlds import (
    EPISODE_STEPS,
    FreeEnvironments,
    open_message,
    parse_observation,
    payload_bytes,
    spec_of,
)
from learner.planning.ready import actions_message, step_message
from protos import inference_pb2 as pb
from protos.errors import ConfigError
from protos.specs import EnvironmentSpec


class Recorder(grpc.GenericRpcHandler):
    """Plays the learner for one client, and keeps every message as the bytes it came in."""

    def __init__(self, spec: EnvironmentSpec, num_envs: int) -> None:
        self.received: list[bytes] = []
        self._spec, self._num_envs = spec, num_envs

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[bytes, bytes]":
        assert handler_call_details.method == ACT
        return grpc.stream_stream_rpc_method_handler(self._talk)

    def _talk(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        for request in requests:
            self.received.append(request)
            message = pb.ClientMessage.FromString(request)
            kind = message.WhichOneof("kind")
            if kind == "open":
                yield pb.ServerMessage(opened=pb.Opened(session_token=b"x" * 16)).SerializeToString()
            elif kind == "step":
                answer = actions_message(self._spec, self._num_envs, message.step.sequence)
                yield answer.SerializeToString()


@pytest.mark.parametrize(("num_envs", "observation"), [(3, "4:float32"), (2, "8x8x1:uint8")])
def test_messages_are_as_large_as_the_real_clients(num_envs: int, observation: str) -> None:
    spec = spec_of(observation, 6)
    environments = FreeEnvironments(parse_observation(observation), 6, num_envs)
    recorder = Recorder(spec, num_envs)
    server = grpc.server(futures.ThreadPoolExecutor(1), handlers=[recorder])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    client = InferenceClient(
        f"127.0.0.1:{port}",
        environments.observation_space,
        environments.action_space,
        num_environments=num_envs,
        name="benchmark",
    )
    with client:
        actions = client.act(environments.reset())
        client.act(environments.step(actions))
    server.stop(None).wait()
    opening, _, step, *_ = recorder.received
    assert len(step) == step_message(spec, num_envs, 2).ByteSize()
    assert len(opening) == open_message(spec, num_envs).ByteSize()


def test_episodes_follow_each_other_as_on_the_wire() -> None:
    environments = FreeEnvironments(parse_observation("4:float32"), 2, 3)
    actions = np.zeros(3, np.int64)
    steps = [environments.reset(), *(environments.step(actions) for _ in range(2 * EPISODE_STEPS + 2))]
    first = [row for row, step in enumerate(steps) if step.first.all()]
    last = [row for row, step in enumerate(steps) if step.truncated.all()]
    assert first == [0, EPISODE_STEPS + 1, 2 * EPISODE_STEPS + 2]
    assert last == [EPISODE_STEPS, 2 * EPISODE_STEPS + 1]
    assert all(step.reward.sum() == (0 if step.first.all() else 3) for step in steps)


def test_round_trips_are_between_a_step_and_its_actions() -> None:
    environments = FreeEnvironments(parse_observation("4:float32"), 2, 1)
    environments.reset()
    for _ in range(3):
        environments.step(np.zeros(1, np.int64))
    assert len(environments.round_trips(0.0, np.inf)) == 3
    assert (environments.round_trips(0.0, np.inf) >= 0).all()
    assert len(environments.round_trips(0.0, 0.0)) == 0


def test_payload_is_what_means_something() -> None:
    assert payload_bytes(spec_of("84x84x1:uint8", 6)) == 7056 + 4 + 1 + 8


@pytest.mark.parametrize("text", ["84x84", "x4:uint8", "4:float64", "0:uint8", ""])
def test_malformed_observations_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected as 84x84x1:uint8 or 4:float32"):
        parse_observation(text)
