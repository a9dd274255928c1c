"""A world whose every row says whose it is, when it is, and by which action it was reached.

An environment's rows are numbered from 0 through all its episodes, whatever happens to the network or to
the learner. What a row must look like follows from its numbers alone, so that whoever has a row can tell
whether it is true.

As an environment of actor processes (`ENV`), it takes its number from the variable
`INCARNATION_VARIABLE`: one number for each actor process there ever was, so that no two share an
environment.
"""

import os
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

ENV = "benchmarks.faults.world:NumberedWorld"
INCARNATION_VARIABLE = "NUMBERED_WORLD_INCARNATION"

ENVIRONMENTS_PER_ACTOR = 1000
"""Environment i of incarnation k has the number k times this, plus i."""

NUM_ACTIONS = 4
NO_ACTION = 255
"""Stands for the action before the first row of an episode, to which none led."""

IDENTITY = np.dtype(
    [("environment", "<u4"), ("row", "<u4"), ("episode", "<u4"), ("time", "u1"), ("came_by", "u1")]
)
"""What an observation says: the environment's number, its row, the episode, the row's place in it, and
the action that led there."""

OBSERVATION_SIZE = IDENTITY.itemsize


class NumberedWorld(gymnasium.Env):  # type: ignore[misc]  # Gymnasium is untyped here
    """Observes its identity, float32 [14]: the bytes of `IDENTITY` as 256ths, which float32 holds
    exactly.

    Episode k of environment n takes 1 + (3 n + 5 k) mod 11 steps. Of three in turn, the first is
    terminated, the second truncated, the third both at once (which an actor sends as terminated).

    Raises:
        RuntimeError: it is reset in the middle of an episode, or twice, or stepped after an episode's
        end.
    """

    observation_space: Any = spaces.Box(0, 1, (OBSERVATION_SIZE,), np.float32)
    action_space: Any = spaces.Discrete(NUM_ACTIONS)
    _made: ClassVar[int] = 0

    def __init__(self) -> None:
        incarnation = int(os.environ.get(INCARNATION_VARIABLE, "0"))
        self._identity = np.zeros((), IDENTITY)
        self._identity["environment"] = incarnation * ENVIRONMENTS_PER_ACTOR + NumberedWorld._made
        NumberedWorld._made += 1
        self._begun = False
        self._over = True

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if not self._over:
            raise RuntimeError("expected a reset after an episode's end, found one in the middle or two")
        if self._begun:
            self._identity["row"] += 1
            self._identity["episode"] += 1
        self._begun, self._over = True, False
        self._identity["time"] = 0
        self._identity["came_by"] = NO_ACTION
        return encode(self._identity), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._over:
            raise RuntimeError("expected a reset after an episode's end, found a step")
        self._identity["row"] += 1
        self._identity["time"] += 1
        self._identity["came_by"] = action
        self._over = bool(ended(self._identity))
        kind = int(self._identity["episode"]) % 3
        terminated, truncated = self._over and kind != 1, self._over and kind != 0
        return encode(self._identity), float(rewards(self._identity)), terminated, truncated, {}


def encode(identity: np.ndarray) -> np.ndarray:
    """IDENTITY [...] as an observation, float32 [..., 14]."""
    octets = np.ascontiguousarray(identity).reshape(-1).view(np.uint8)
    return (octets.reshape(*identity.shape, OBSERVATION_SIZE) / np.float32(256)).astype(np.float32)


def decode(observation: np.ndarray) -> np.ndarray:
    """An observation, float32 [..., 14], as IDENTITY [...]."""
    octets = np.ascontiguousarray(np.rint(observation * 256).astype(np.uint8))
    return octets.view(IDENTITY)[..., 0]


def ended(identity: np.ndarray) -> np.ndarray:
    """bool [...]: whether these rows are the last of their episodes."""
    environment, episode = identity["environment"].astype(np.int64), identity["episode"].astype(np.int64)
    return identity["time"] == 1 + (3 * environment + 5 * episode) % 11


def terminated(identity: np.ndarray) -> np.ndarray:
    """bool [...]: whether an actor sends these rows as terminated; both at once is terminated."""
    return ended(identity) & (identity["episode"] % 3 != 1)


def truncated(identity: np.ndarray) -> np.ndarray:
    """bool [...]: whether an actor sends these rows as truncated."""
    return ended(identity) & (identity["episode"] % 3 == 1)


def rewards(identity: np.ndarray) -> np.ndarray:
    """float32 [...]: the rewards of these rows; 0 where an episode begins."""
    row, environment = identity["row"].astype(np.int64), identity["environment"].astype(np.int64)
    value = (7 * row + environment) % 13 - 4.5
    return np.where(identity["time"] == 0, 0.0, value).astype(np.float32)
