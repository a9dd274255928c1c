"""Environments of no cost, and the sizes of the messages that they cause. No TensorFlow."""

import re
import time
from array import array
from typing import Any

import numpy as np
from gymnasium import spaces

from actor.timestep import TimeStep
from learner.planning.ready import sample
from protos import PROTOCOL_MINOR, PROTOCOL_VERSION, specs, tensors
from protos import inference_pb2 as pb
from protos.errors import ConfigError
from protos.specs import EnvironmentSpec
from protos.version import version

EPISODE_STEPS = 1000
"""Environments of no cost truncate after so many steps."""


def parse_observation(text: str) -> spaces.Box:
    """The space that `84x84x1:uint8` or `4:float32` means.

    Raises:
        ConfigError: it means none.
    """
    found = re.fullmatch(r"(\d+(?:x\d+)*):(uint8|float32)", text)
    shape = tuple(map(int, found[1].split("x"))) if found else (0,)
    if not found or 0 in shape:
        raise ConfigError(f"--observation {text}: expected as 84x84x1:uint8 or 4:float32")
    if found[2] == "uint8":
        return spaces.Box(0, 255, shape, np.uint8)
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


class FreeEnvironments:
    """N environments that show the same random numbers at every step, as a `VectorEnvironment`.

    They note when they handed out a step and when they were given the actions for it: what an
    environment sees of everything behind it.
    """

    frames_per_second = 30.0

    def __init__(self, observation: spaces.Box, num_actions: int, num_envs: int) -> None:
        self.num_envs = num_envs
        self.observation_space = observation
        self.action_space = spaces.Discrete(num_actions)
        rng = np.random.default_rng(0)
        shown = sample(specs.from_spaces(observation, self.action_space), num_envs, rng)[0]
        no, yes = np.zeros(num_envs, bool), np.ones(num_envs, bool)
        zeros, ones = np.zeros(num_envs, np.float32), np.ones(num_envs, np.float32)
        self._first = TimeStep(shown, zeros, no, no, yes)
        self._middle = TimeStep(shown, ones, no, no, no)
        self._last = TimeStep(shown, ones, no, yes, no)
        self._rows = 0
        self._shown, self._acted = array("d"), array("d")

    def reset(self) -> TimeStep:
        self._shown.append(time.monotonic())
        return self._first

    def step(self, actions: np.ndarray) -> TimeStep:
        self._acted.append(time.monotonic())
        self._rows = (self._rows + 1) % (EPISODE_STEPS + 1)
        if self._rows == 0:
            timestep = self._first
        else:
            timestep = self._last if self._rows == EPISODE_STEPS else self._middle
        self._shown.append(time.monotonic())
        return timestep

    def render(self) -> np.ndarray | None:
        return None

    def close(self) -> None:
        return None

    def round_trips(self, start: float, stop: float) -> np.ndarray:
        """Seconds, float64, of the steps that were answered in the window of `time.monotonic`."""
        acted = np.frombuffer(self._acted)
        return (acted - np.frombuffer(self._shown)[: len(acted)])[(acted >= start) & (acted < stop)]


# Messages ---------------------------------------------------------------------------------------


def open_message(spec: EnvironmentSpec, num_envs: int) -> pb.ClientMessage:
    """The first message of a training session."""
    return pb.ClientMessage(
        open=pb.Open(
            protocol_version=PROTOCOL_VERSION,
            protocol_minor=PROTOCOL_MINOR,
            num_environments=num_envs,
            spec=specs.to_proto(spec),
            mode=pb.TRAIN,
            client="benchmark",
            client_version=version(),
        )
    )


def payload_bytes(spec: EnvironmentSpec) -> int:
    """Bytes of one environment's step that mean something: observation, reward, flags, and the action
    that comes back."""
    return (
        sum(leaf.num_bytes for leaf in spec.observation)
        + tensors.REWARD.itemsize
        + tensors.FLAGS.itemsize
        + spec.action.num_bytes
    )


def spec_of(observation: str, num_actions: int) -> EnvironmentSpec:
    """The spec of `FreeEnvironments`."""
    action: Any = spaces.Discrete(num_actions)
    return specs.from_spaces(parse_observation(observation), action)
