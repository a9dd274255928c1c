"""The environments of the workloads, as batches of arrays: NumPy alone, ale-py for Pong.

Every system gets the same code through a thin adapter to its own interface. N environments step
together. With `autoreset` "same", the row that ends an episode already shows the next one's first
observation and `final` holds the true last one; with "next", the row shows the true last observation and
the step after it is a reset, whose action is ignored (Gymnasium's SAME_STEP and NEXT_STEP).
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

Autoreset = Literal["same", "next"]

FRAME = (84, 84)
EPISODE_STEPS = 1000
"""Worlds of no cost, and stragglers, truncate after so many steps."""


class Step(NamedTuple):
    """One row for each of N environments."""

    observation: np.ndarray
    """[N, *shape]"""
    reward: np.ndarray
    """float32 [N]"""
    terminated: np.ndarray
    """bool [N]"""
    truncated: np.ndarray
    """bool [N]"""
    final: np.ndarray | None = None
    """[N, *shape], valid where an episode ended; None where none did, or with "next" """
    reset: np.ndarray | None = None
    """bool [N], "next" only: rows that begin an episode; None where none does"""


class World(ABC):
    """N environments of one workload."""

    shape: tuple[int, ...] = (4,)
    dtype: Any = np.float32
    num_actions = 2

    def __init__(self, num_envs: int, autoreset: Autoreset, seed: int) -> None:
        self.num_envs, self.autoreset = num_envs, autoreset
        self.rng = np.random.default_rng(seed)

    @abstractmethod
    def reset(self) -> np.ndarray:
        """Begin all episodes; observations [N, *shape]."""

    @abstractmethod
    def step(self, actions: np.ndarray) -> Step:
        """Step all environments with int [N]."""


class FreeWorld(World):
    """W1: shows the same numbers at every step, which cost nothing. All episodes end together."""

    def __init__(self, num_envs: int, autoreset: Autoreset, seed: int) -> None:
        super().__init__(num_envs, autoreset, seed)
        shown = self.rng.uniform(0, 256 if self.dtype == np.uint8 else 1, (num_envs, *self.shape))
        self._shown = shown.astype(self.dtype)
        no, yes = np.zeros(num_envs, bool), np.ones(num_envs, bool)
        one, zero = np.ones(num_envs, np.float32), np.zeros(num_envs, np.float32)
        self._middle = Step(self._shown, one, no, no)
        self._last = Step(self._shown, one, no, yes, self._shown if autoreset == "same" else None)
        self._first = Step(self._shown, zero, no, no, reset=yes)
        self._rows = 0

    def reset(self) -> np.ndarray:
        self._rows = 0
        return self._shown

    def step(self, actions: np.ndarray) -> Step:
        self._rows += 1
        if self._rows < EPISODE_STEPS:
            return self._middle
        if self._rows == EPISODE_STEPS:
            if self.autoreset == "same":
                self._rows = 0
            return self._last
        self._rows = 0
        return self._first


class FreeImages(FreeWorld):
    """W2: uint8 [frames, 84, 84]; `frames` is 1 where the learner stacks."""

    dtype = np.uint8
    num_actions = 6

    def __init__(self, num_envs: int, autoreset: Autoreset, seed: int, frames: int) -> None:
        self.shape = (frames, *FRAME)
        super().__init__(num_envs, autoreset, seed)


class NumpyWorld(World):
    """A world that is told how to go on and how to begin, and keeps the order of episodes itself."""

    def __init__(self, num_envs: int, autoreset: Autoreset, seed: int) -> None:
        super().__init__(num_envs, autoreset, seed)
        self._over = np.zeros(num_envs, bool)

    def reset(self) -> np.ndarray:
        self._over = np.zeros(self.num_envs, bool)
        self._begin(~self._over)
        return self._observe()

    def step(self, actions: np.ndarray) -> Step:
        following = self.autoreset == "next" and bool(self._over.any())
        reset = self._over if following else None
        reward, terminated, truncated = self._advance(
            np.asarray(actions), ~reset if reset is not None else np.ones(self.num_envs, bool)
        )
        if reset is not None:
            reward[reset], terminated[reset], truncated[reset] = 0, False, False
            self._begin(reset)
        self._over = terminated | truncated
        observation, final = self._observe(), None
        if self.autoreset == "same" and self._over.any():
            final = observation
            self._begin(self._over)
            observation = self._observe()
        return Step(observation, reward, terminated, truncated, final, reset)

    @abstractmethod
    def _begin(self, rows: np.ndarray) -> None:
        """Begin an episode in the rows of this mask."""

    @abstractmethod
    def _advance(
        self, actions: np.ndarray, live: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Reward, terminated, truncated, as new arrays; rows that are not `live` are not looked at."""

    @abstractmethod
    def _observe(self) -> np.ndarray:
        """A new array [N, *shape]."""


class CartPole(NumpyWorld):
    """W3: CartPole-v1, in Gymnasium's terms: Barto, Sutton and Anderson 1983, truncated at 500 steps."""

    MAX_STEPS = 500

    def reset(self) -> np.ndarray:
        self._state = np.zeros((self.num_envs, 4))
        self._steps = np.zeros(self.num_envs, np.int64)
        return super().reset()

    def _begin(self, rows: np.ndarray) -> None:
        self._state[rows] = self.rng.uniform(-0.05, 0.05, (int(rows.sum()), 4))
        self._steps[rows] = 0

    def _advance(
        self, actions: np.ndarray, live: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        _, x_dot, theta, theta_dot = self._state.T
        force = np.where(actions == 1, 10.0, -10.0)
        cos, sin = np.cos(theta), np.sin(theta)
        push = (force + 0.05 * theta_dot**2 * sin) / 1.1
        theta_acc = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
        x_acc = push - 0.05 * theta_acc * cos / 1.1
        self._state = self._state + 0.02 * np.stack([x_dot, x_acc, theta_dot, theta_acc], 1)
        self._steps += 1
        out = (np.abs(self._state[:, 0]) > 2.4) | (np.abs(self._state[:, 2]) > 12 * 2 * np.pi / 360)
        return np.ones(self.num_envs, np.float32), out, self._steps >= self.MAX_STEPS

    def _observe(self) -> np.ndarray:
        return self._state.astype(np.float32)


class Straggler(NumpyWorld):
    """W5: 5 ms a step, 100 ms one step in twenty, 500 ms a reset, one environment after the other."""

    STEP, SLOW_STEP, RESET = 0.005, 0.1, 0.5
    SLOW_PART = 0.05

    def __init__(
        self,
        num_envs: int,
        autoreset: Autoreset,
        seed: int,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(num_envs, autoreset, seed)
        self._sleep = sleep
        self._steps = np.zeros(num_envs, np.int64)
        self._shown = self.rng.uniform(0, 1, (num_envs, *self.shape)).astype(np.float32)

    def reset(self) -> np.ndarray:
        shown = super().reset()
        # Episodes that all ended together would hide what a single reset does to the others.
        self._steps = self.rng.integers(0, EPISODE_STEPS, self.num_envs)
        return shown

    def _begin(self, rows: np.ndarray) -> None:
        self._sleep(self.RESET * int(rows.sum()))
        self._steps = np.where(rows, 0, self._steps)

    def _advance(
        self, actions: np.ndarray, live: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        slow = self.rng.random(self.num_envs) < self.SLOW_PART
        self._sleep(float(np.where(slow, self.SLOW_STEP, self.STEP)[live].sum()))
        self._steps = self._steps + 1
        no = np.zeros(self.num_envs, bool)
        return np.ones(self.num_envs, np.float32), no, self._steps >= EPISODE_STEPS

    def _observe(self) -> np.ndarray:
        return self._shown.copy()


class Recall(NumpyWorld):
    """W6: shows one of 4 cues, nothing for 5 steps, then a question; the action after it earns 1 if it
    names the cue. Observations are one-hot: the cues, nothing, the question."""

    CUES, DELAY = 4, 5
    shape = (CUES + 2,)
    num_actions = CUES

    def reset(self) -> np.ndarray:
        self._cue = np.zeros(self.num_envs, np.int64)
        self._time = np.zeros(self.num_envs, np.int64)
        return super().reset()

    def _begin(self, rows: np.ndarray) -> None:
        self._cue[rows] = self.rng.integers(0, self.CUES, int(rows.sum()))
        self._time[rows] = 0

    def _advance(
        self, actions: np.ndarray, live: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        answered = self._time == self.DELAY + 1
        reward = (answered & (actions == self._cue)).astype(np.float32)
        self._time = self._time + 1
        return reward, answered, np.zeros(self.num_envs, bool)

    def _observe(self) -> np.ndarray:
        later = np.where(self._time == self.DELAY + 1, self.CUES + 1, self.CUES)
        shown = np.where(self._time == 0, self._cue, later)
        return np.eye(self.CUES + 2, dtype=np.float32)[shown]
