"""A task that no policy without memory can solve: a cue is shown at first, and asked for at last."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

CUES = 4
STEPS = 8


class MemoryEnv(gymnasium.Env[Any, Any]):
    """Observes the cue (one-hot) in the first row and "now" in the last; else nothing.

    The reward is 1 if the action chosen from the last row is the cue. What is seen there is the same
    for every cue, so without memory no policy earns more than 1 / CUES an episode.
    """

    observation_space = spaces.Box(0, 1, (CUES + 1,), np.float32)
    action_space = spaces.Discrete(CUES)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(CUES))
        self._step = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        over = self._step == STEPS
        reward = float(over and int(action) == self._cue)
        return self._observe(), reward, over, False, {}

    def _observe(self) -> np.ndarray:
        shown = np.zeros(CUES + 1, np.float32)
        if self._step == 0:
            shown[self._cue] = 1
        elif self._step == STEPS - 1:
            shown[CUES] = 1
        return shown
