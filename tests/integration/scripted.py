"""A world whose every row says who and when it is, and an agent whose actions say what it saw.

An environment's rows are numbered from 0 through all its episodes; their observation is
(environment number, row number). The policy's memory is the sum of the observations since the
reset, and its action is that sum's total plus 10,000 for each version of the weights (modulo the
number of actions). So what an environment was told proves which rows the policy had seen, and with
which weights it acted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from gymnasium import spaces

from actor.timestep import TimeStep
from learner.agents.agent import Policy
from learner.experience.trajectory import ActInputs, ActOutputs, Batch, State, Tensor
from protos.specs import from_spaces

OBSERVATIONS = spaces.Box(0, 1000, (2,), np.float32)
NUM_ACTIONS = 1 << 20
ACTIONS = spaces.Discrete(NUM_ACTIONS)
SPEC = from_spaces(OBSERVATIONS, ACTIONS)
VERSION_STEP = 10_000


@dataclass(frozen=True)
class Row:
    """What one environment showed, and the action that it was given for it."""

    reward: float
    terminated: bool
    truncated: bool
    first: bool


@dataclass
class History:
    """Everything that happened in one environment."""

    number: int
    rows: list[Row] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    """the answer to each row, but for the last ones where the actor ended"""

    def memory(self, row: int) -> np.ndarray:
        """float64 [2]: sum of the observations from the episode's first row up to before `row`."""
        start = max((i for i in range(row + 1) if self.rows[i].first), default=0)
        numbers = np.arange(start, row)
        return np.array([self.number * len(numbers), numbers.sum()], np.float64)

    def action(self, row: int, version: int) -> int:
        """The scripted policy's answer to `row`."""
        seen = self.memory(row).sum() + self.number + row
        return (int(seen) + VERSION_STEP * version) % NUM_ACTIONS


class ScriptedEnvironments:
    """Environments with these numbers, as a `VectorEnvironment`.

    Episode k of environment n takes 1 + (3 n + 5 k) mod 11 steps. Of three in turn, the first is
    terminated, the second truncated, the third terminated and truncated at once.
    """

    observation_space = OBSERVATIONS
    action_space = ACTIONS
    frames_per_second = 1.0

    def __init__(self, numbers: Iterable[int]) -> None:
        self.histories = [History(number) for number in numbers]
        self.num_envs = len(self.histories)
        self._episode = [0] * self.num_envs
        self._time = [0] * self.num_envs

    def reset(self) -> TimeStep:
        return self._show(range(self.num_envs), [self._first(i) for i in range(self.num_envs)])

    def step(self, actions: np.ndarray) -> TimeStep:
        return self.step_some(range(self.num_envs), actions)

    def step_some(self, indices: Sequence[int], actions: np.ndarray) -> TimeStep:
        """Step only these environments."""
        rows = []
        for i, action in zip(indices, actions, strict=True):
            history = self.histories[i]
            history.actions.append(int(action))
            last = history.rows[-1].terminated or history.rows[-1].truncated
            rows.append(self._first(i) if last else self._next(i))
        return self._show(indices, rows)

    def render(self) -> None:
        return None

    def close(self) -> None:
        pass

    def _first(self, i: int) -> Row:
        self._time[i] = 0
        return Row(0.0, False, False, True)

    def _next(self, i: int) -> Row:
        history, episode = self.histories[i], self._episode[i]
        self._time[i] += 1
        ended = self._time[i] == 1 + (3 * history.number + 5 * episode) % 11
        if ended:
            self._episode[i] += 1
        reward = (7 * len(history.rows) + history.number) % 13 - 4.5
        return Row(reward, ended and episode % 3 != 1, ended and episode % 3 != 0, False)

    def _show(self, indices: Sequence[int], rows: list[Row]) -> TimeStep:
        observation = []
        for i, row in zip(indices, rows, strict=True):
            history = self.histories[i]
            observation.append((history.number, len(history.rows)))
            history.rows.append(row)
        return TimeStep(
            np.array(observation, np.float32),
            np.array([row.reward for row in rows], np.float32),
            np.array([row.terminated for row in rows]),
            np.array([row.truncated for row in rows]),
            np.array([row.first for row in rows]),
        )


class ScriptedPolicy:
    """See the module's docstring. Records what it did."""

    def __init__(self) -> None:
        self.version = tf.Variable(0, dtype=tf.int64, trainable=False)

    @property
    def state_specs(self) -> Mapping[str, Any]:
        return {"sum": tf.TensorSpec((2,), tf.float64)}

    @property
    def variables(self) -> list[Any]:
        return [self.version]

    def act(
        self, inputs: ActInputs, state: State, *, seed: Tensor, greedy: bool
    ) -> tuple[ActOutputs, State]:
        total = state["sum"] + tf.cast(inputs.observation[0], tf.float64)
        seen = tf.cast(tf.reduce_sum(total, 1), tf.int64)
        action = (seen + VERSION_STEP * self.version) % NUM_ACTIONS
        record = {"action": action, "slot": inputs.slot, "reset": inputs.reset}
        return ActOutputs(action, record), {"sum": total}


class ScriptedAgent:
    """Its update keeps the batch, and makes the weights say their new version."""

    def __init__(self) -> None:
        self._policy = ScriptedPolicy()
        self.batches: list[Batch] = []
        self.on_update: Callable[[int], object] = lambda batches: None

    @property
    def policy(self) -> Policy:
        return self._policy

    def make_policy(self) -> Policy:
        return ScriptedPolicy()

    @property
    def variables(self) -> Mapping[str, Any]:
        return {"version": self._policy.version}

    def update(self, batch: Batch, progress: Tensor) -> Mapping[str, Tensor]:
        self.batches.append(tf.nest.map_structure(lambda tensor: tensor.numpy(), batch))
        self._policy.version.assign_add(1)
        self.on_update(len(self.batches))
        return {"loss": 0.0}
