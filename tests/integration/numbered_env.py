"""An environment for actor processes: NUMBER says who it is, HANGS_AT where it stops to answer."""

import os
import threading
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class NumberedEnv(gymnasium.Env[Any, Any]):
    """Observes (its number, its step); of the same specs as the scripted world."""

    observation_space = spaces.Box(0, 1000, (2,), np.float32)
    action_space = spaces.Discrete(1 << 20)

    def __init__(self) -> None:
        self._number = int(os.environ["NUMBER"])
        self._hangs_at = int(os.environ.get("HANGS_AT", "-1"))
        self._step = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        if self._step == self._hangs_at:
            threading.Event().wait()
        return self._observe(), 1.0, self._step % 10 == 0, False, {}

    def _observe(self) -> Any:
        return np.array([self._number, self._step % 1000], np.float32)
