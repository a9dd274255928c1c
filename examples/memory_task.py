"""A task that needs memory: a cue is shown once, and asked for some steps later.

    seedbed train --preset memory-r2d2

An episode is 20 steps long. Without a memory (`--lstm-size 0`) the best that a policy can do is to
guess: a mean return of 1 / CUES.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete

CUES = 4
DELAY = 18
NOTHING, QUESTION = CUES, CUES + 1


class Recall(gymnasium.Env[np.int64, np.int64]):
    """Shows one of `CUES` cues, then nothing for `DELAY` steps, then a question.

    The observation is a category, which the learner encodes one-hot. The action after the question
    earns 1 if it names the cue; actions before it have no effect.
    """

    def __init__(self) -> None:
        self.observation_space = Discrete(CUES + 2)
        self.action_space = Discrete(CUES)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        super().reset(seed=seed)
        self._cue = self.np_random.integers(CUES)
        self._time = 0
        return self._cue, {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        answered = self._time == DELAY + 1
        reward = float(answered and action == self._cue)
        self._time += 1
        observation = QUESTION if self._time == DELAY + 1 else NOTHING
        return np.int64(observation), reward, answered, False, {}


def make_env() -> gymnasium.Env[np.int64, np.int64]:
    """Called once for each environment of an actor."""
    return Recall()
