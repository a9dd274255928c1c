"""Actors of other versions of the protocol, on real streams: one minor version away works, two do not.

A client of 1.0 sends no `protocol_minor`. A newer peer, which is to come, is played by fields of numbers
that nobody has used yet, in every message and at every level.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message

import actor.client
import actor.stream
import learner.serving.rpc
import learner.serving.service
from actor.client import InferenceClient
from actor.timestep import restart, transition
from learner.config import LearnerOptions
from learner.serving.rpc import Rpc
from protos import PROTOCOL_MINOR, PROTOCOL_VERSION
from protos import inference_pb2 as pb
from protos.errors import InvalidRequest
from tests.integration.scripted import ACTIONS, OBSERVATIONS
from tests.integration.serving import ServingLearner

UNKNOWN = b"\xc0\x3e\x07\xca\x3e\x05later"
"""Fields 1000 (a number) and 1001 (bytes), which no message of ours has."""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingLearner]:
    folder = tmp_path_factory.mktemp("learner")
    chosen = LearnerOptions(unroll_length=4, batch_size=1, queue_capacity=100)
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        ServingLearner(f"unix:{folder}/s", folder, monkeypatch, chosen) as made,
    ):
        yield made


def with_unknown_fields(message: Any) -> Any:
    """The message as a newer peer would send it, its own kind and what that holds included."""
    kind = getattr(message, message.WhichOneof("kind"))
    for part in (
        message,
        kind,
        *(value for _, value in kind.ListFields() if isinstance(value, Message)),
    ):
        part.MergeFromString(UNKNOWN)
    assert message.SerializeToString().count(b"later") >= 2
    return message


def act_for_an_episode(address: str) -> None:
    """The scripted policy's actions are the sums of what it saw: they prove that all has arrived."""
    with InferenceClient(address, OBSERVATIONS, ACTIONS, name="of another version") as client:
        timestep, total = restart(np.array([9, 0], np.float32)), 0
        for row in range(6):
            total += 9 + row
            assert client.act(timestep) == total
            timestep = transition(np.array([9, row + 1], np.float32), 1.0, False, False)


def test_an_actor_one_minor_version_older(
    serving: ServingLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    serialize, opened = actor.stream._bytes, []

    def keep(message: pb.ClientMessage) -> bytes:
        if message.WhichOneof("kind") == "open":
            opened.append([field.name for field, _ in message.open.ListFields()])
        return serialize(message)

    monkeypatch.setattr(actor.client, "PROTOCOL_MINOR", PROTOCOL_MINOR - 1)
    monkeypatch.setattr(actor.stream, "_bytes", keep)
    act_for_an_episode(serving.listen)
    (fields,) = opened
    # 1.0 has no such field, and a number that is 0 is not sent.
    assert ("protocol_minor" in fields) == (PROTOCOL_MINOR > 1)


def test_an_actor_one_minor_version_newer(
    serving: ServingLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    serialize, written = actor.stream._bytes, []

    def serialize_newer(message: pb.ClientMessage) -> bytes:
        written.append(message.WhichOneof("kind"))
        return serialize(with_unknown_fields(message))

    monkeypatch.setattr(actor.client, "PROTOCOL_MINOR", PROTOCOL_MINOR + 1)
    monkeypatch.setattr(actor.stream, "_bytes", serialize_newer)
    act_for_an_episode(serving.listen)
    assert written == ["open", *["step"] * 6, "close"]


def test_a_learner_one_minor_version_newer(
    serving: ServingLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, written = learner.serving.rpc.Rpc.send, []

    def send_newer(rpc: Rpc, data: bytes) -> None:
        message = pb.ServerMessage.FromString(data)
        written.append(message.WhichOneof("kind"))
        send(rpc, with_unknown_fields(message).SerializeToString())

    monkeypatch.setattr(learner.serving.service, "PROTOCOL_MINOR", PROTOCOL_MINOR + 1)
    monkeypatch.setattr(learner.serving.rpc.Rpc, "send", send_newer)
    act_for_an_episode(serving.listen)
    assert written == ["opened", *["actions"] * 6]


@pytest.mark.parametrize(
    ("version", "minor", "older"),
    [
        (PROTOCOL_VERSION, PROTOCOL_MINOR + 2, "learner"),
        (PROTOCOL_VERSION + 1, 0, "learner"),
        (PROTOCOL_VERSION - 1, PROTOCOL_MINOR, "actor"),
    ],
)
def test_an_actor_that_is_too_far_away(
    version: int, minor: int, older: str, serving: ServingLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor.client, "PROTOCOL_VERSION", version)
    monkeypatch.setattr(actor.client, "PROTOCOL_MINOR", minor)
    with pytest.raises(InvalidRequest) as raised:
        act_for_an_episode(serving.listen)
    assert str(raised.value) == (
        f"protocol: expected {PROTOCOL_VERSION}.{PROTOCOL_MINOR - 1} to "
        f"{PROTOCOL_VERSION}.{PROTOCOL_MINOR + 1} (this learner's is "
        f"{PROTOCOL_VERSION}.{PROTOCOL_MINOR}), found {version}.{minor}: upgrade the {older}, which is "
        "the older one"
    )


def test_an_actor_two_minor_versions_older(
    serving: ServingLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner.serving.service, "PROTOCOL_MINOR", PROTOCOL_MINOR + 2)
    with pytest.raises(InvalidRequest, match=r"found 1\.1: upgrade the actor, which is the older one"):
        act_for_an_episode(serving.listen)
