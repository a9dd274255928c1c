"""An actor as a process of its own, with environments of no cost: the real loop and the real client."""

import os
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from actor.client import InferenceClient
from actor.loop import run_actor
from actor.retry import RetryPolicy
from benchmarks.children import DEADLINE_SECONDS, commands
from benchmarks.worlds import FreeEnvironments, parse_observation


@dataclass(frozen=True)
class ActorSetup:
    """Where to connect, and with what."""

    address: str
    observation: str
    num_actions: int
    num_envs: int
    niceness: int


def run_free_actor(connection: Connection, setup: ActorSetup, stopped: Any) -> None:
    """The process: says "connected", acts until `stopped`, and then answers `(start, stop)` with the
    round trips in that window, float64 seconds."""
    os.nice(setup.niceness)
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
        run_actor(environments, client, stopped=lambda: bool(stopped.value))
    for start, stop in commands(connection):
        round_trips: np.ndarray = environments.round_trips(start, stop)
        connection.send(round_trips)
