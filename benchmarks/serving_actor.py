"""An actor as a process of its own, with environments of no cost: the real loop and the real client."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from actor.client import InferenceClient
from actor.loop import run_actor
from actor.retry import RetryPolicy
from actor.standing_back import stand_back
from benchmarks.children import DEADLINE_SECONDS
from benchmarks.load import turns
from benchmarks.worlds import FreeEnvironments, parse_observation


@dataclass(frozen=True)
class ActorSetup:
    """Where to connect, and with what."""

    address: str
    observation: str
    num_actions: int
    num_envs: int
    niceness: int


def run_free_actor(connection: Connection, setup: ActorSetup, paused: Any) -> None:
    """The process, a client as `benchmarks.load.loading` has it: what it has seen are the round trips,
    float64 seconds."""
    stand_back(setup.niceness)
    observation = parse_observation(setup.observation)
    environments = FreeEnvironments(observation, setup.num_actions, setup.num_envs)
    client = InferenceClient(
        setup.address,
        environments.observation_space,
        environments.action_space,
        num_environments=setup.num_envs,
        retry=RetryPolicy(give_up_seconds=DEADLINE_SECONDS),
    )
    with client:
        connection.send("connected")
        stopped = _stopped(connection, paused, environments.round_trips)
        run_actor(environments, client, stopped=partial(next, stopped))


def _stopped(
    connection: Connection, paused: Any, seen: Callable[[float, float], np.ndarray]
) -> Iterator[bool]:
    """What the loop asks before each step: whether to stop. Here it waits between its turns, so that the
    session goes on where it was."""
    for over in turns(connection, paused, seen):
        # A turn's first round trip has lasted since the turn before.
        yield False
        while not over():
            yield False
    yield True
