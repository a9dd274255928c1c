"""The worlds as Gymnasium vector environments: for seedbed and for RLlib.

`benchmarks.peer_drivers.vector_env:w1` to `:w6` are environments as `seedbed train --env` takes them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from benchmarks.peer_drivers.making import make_world

Layout = Callable[[np.ndarray], np.ndarray]


class WorldVectorEnv(VectorEnv):  # type: ignore[misc]  # Gymnasium is untyped here
    """A world with NEXT_STEP autoreset.

    Args:
        workload: W1 to W6.
        num_envs: environments that step together.
        seed: of all of them together; the seed of `reset` is not looked at.
        frames: images that one observation holds, where it is one.
        layout: images [N, frames, 84, 84] uint8 to what the learner takes.
        space: of one observation after that.
    """

    def __init__(
        self,
        workload: str,
        num_envs: int,
        seed: int,
        *,
        frames: int = 4,
        layout: Layout | None = None,
        space: Box | None = None,
    ) -> None:
        self._world = make_world(workload, num_envs, "next", seed=seed, frames=frames)
        images = self._world.dtype == np.uint8
        self._layout = layout if images else None
        high = 255 if images else np.inf
        plain = Box(0 if images else -np.inf, high, self._world.shape, self._world.dtype)
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = None
        self.single_observation_space = space if images and space is not None else plain
        self.single_action_space = Discrete(self._world.num_actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        return self._laid_out(self._world.reset()), {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        step = self._world.step(np.asarray(actions))
        return self._laid_out(step.observation), step.reward, step.terminated, step.truncated, {}

    def _laid_out(self, observation: np.ndarray) -> np.ndarray:
        return observation if self._layout is None else self._layout(observation)


def single_frames(images: np.ndarray) -> np.ndarray:
    """uint8 [N, 84, 84, 1] from [N, 1, 84, 84]: seedbed's learner stacks."""
    return images.reshape(len(images), *images.shape[2:], 1)


def _seedbed(workload: str, num_envs: int, seed: int) -> WorldVectorEnv:
    space = Box(0, 255, (84, 84, 1), np.uint8)
    return WorldVectorEnv(workload, num_envs, seed, frames=1, layout=single_frames, space=space)


def w1(num_envs: int, seed: int) -> WorldVectorEnv:
    return _seedbed("W1", num_envs, seed)


def w2(num_envs: int, seed: int) -> WorldVectorEnv:
    return _seedbed("W2", num_envs, seed)


def w3(num_envs: int, seed: int) -> WorldVectorEnv:
    return _seedbed("W3", num_envs, seed)


def w4(num_envs: int, seed: int) -> WorldVectorEnv:
    return _seedbed("W4", num_envs, seed)


def w5(num_envs: int, seed: int) -> WorldVectorEnv:
    return _seedbed("W5", num_envs, seed)


def w6(num_envs: int, seed: int) -> WorldVectorEnv:
    return _seedbed("W6", num_envs, seed)
