"""Your own environment: a class with Gymnasium's interface, and a callable that makes one.

    seedbed train --env examples/custom_environment.py:make_env --total-steps 200000

The game is Catch (as in Osband et al. 2020, "Behaviour Suite for Reinforcement Learning"): a ball
falls down a board, a paddle at the bottom moves left or right, and the reward is 1 for a caught ball
and -1 for a missed one.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

ROWS, COLUMNS = 10, 5


class Catch(gymnasium.Env[np.ndarray, np.int64]):
    """An episode is one ball, which takes 9 steps to fall; so the best mean return is 1."""

    def __init__(self) -> None:
        self.observation_space = Box(0, 1, (ROWS, COLUMNS), np.float32)
        self.action_space = Discrete(3)  # left, stay, right

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)  # makes self.np_random
        self._row = 0
        self._column = int(self.np_random.integers(COLUMNS))
        self._paddle = COLUMNS // 2
        return self._board(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._paddle = min(max(self._paddle + int(action) - 1, 0), COLUMNS - 1)
        self._row += 1
        terminated = self._row == ROWS - 1
        reward = 0.0
        if terminated:
            reward = 1.0 if self._paddle == self._column else -1.0
        return self._board(), reward, terminated, False, {}

    def _board(self) -> np.ndarray:
        board = np.zeros((ROWS, COLUMNS), np.float32)
        board[self._row, self._column] = 1
        board[-1, self._paddle] = 1
        return board


def make_env() -> gymnasium.Env[np.ndarray, np.int64]:
    """Called once for each environment of an actor. It may also take `seed` and `num_envs`."""
    return Catch()
