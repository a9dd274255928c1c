"""The worlds as Stable-Baselines3's vector environment, in its own process or in several."""

import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from stable_baselines3.common.vec_env import VecEnv

from benchmarks.peer_drivers.making import make_world
from benchmarks.peer_drivers.settings import Settings
from benchmarks.peer_drivers.worlds import Step

# Forked before the learner has threads: each would else import all of torch to step an environment.
_context = multiprocessing.get_context("fork")


class Here:
    """A world in this process."""

    def __init__(self, workload: str, num_envs: int, seed: int) -> None:
        self._world = make_world(workload, num_envs, "same", seed=seed)
        self._actions = np.zeros(num_envs, np.int64)
        self.about = (self._world.shape, self._world.dtype, self._world.num_actions)

    def reset(self) -> np.ndarray:
        return self._world.reset()

    def send(self, actions: np.ndarray) -> None:
        self._actions = actions

    def receive(self) -> Step:
        return self._world.step(self._actions)

    def close(self) -> None:
        return None


class There:
    """A world in a process of its own, spoken to over a pipe."""

    def __init__(self, workload: str, num_envs: int, seed: int) -> None:
        self._connection, theirs = _context.Pipe()
        self._process = _context.Process(
            target=_serve, args=(theirs, workload, num_envs, seed), daemon=True
        )
        self._process.start()
        theirs.close()
        self.about = self._connection.recv()

    def reset(self) -> np.ndarray:
        self._connection.send(None)
        observation: np.ndarray = self._connection.recv()
        return observation

    def send(self, actions: np.ndarray) -> None:
        self._connection.send(actions)

    def receive(self) -> Step:
        return Step(*self._connection.recv())

    def close(self) -> None:
        self._connection.close()
        self._process.join(5.0)


def _serve(connection: Connection, workload: str, num_envs: int, seed: int) -> None:
    world = Here(workload, num_envs, seed)
    connection.send(world.about)
    while True:
        try:
            actions = connection.recv()
        except (EOFError, OSError):
            return
        if actions is None:
            connection.send(world.reset())
        else:
            world.send(actions)
            connection.send(tuple(world.receive()))


class WorldVecEnv(VecEnv):  # type: ignore[misc]  # its own interpreter alone has the package
    """All worlds of a run as one vector environment."""

    def __init__(self, settings: Settings) -> None:
        kind = There if settings.actors else Here
        self._groups: Sequence[Here | There] = [
            kind(settings.workload, settings.envs_per_actor, settings.seed * 1000 + index)
            for index in range(max(settings.actors, 1))
        ]
        shape, dtype, num_actions = self._groups[0].about
        images = dtype == np.uint8
        space = Box(0 if images else -np.inf, 255 if images else np.inf, shape, dtype)
        super().__init__(settings.environments, space, Discrete(num_actions))

    def reset(self) -> np.ndarray:
        return np.concatenate([group.reset() for group in self._groups])

    def step_async(self, actions: np.ndarray) -> None:
        for group, part in zip(self._groups, np.split(actions, len(self._groups)), strict=True):
            group.send(part)

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        steps = [group.receive() for group in self._groups]
        infos = [info for step in steps for info in _infos(step)]
        observation = np.concatenate([step.observation for step in steps])
        reward = np.concatenate([step.reward for step in steps])
        over = np.concatenate([step.terminated | step.truncated for step in steps])
        return observation, reward, over, infos

    def close(self) -> None:
        for group in self._groups:
            group.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    # The base class asks for these two; its algorithms call neither on environments like these.

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError(f"{attr_name}: the worlds have no settings")

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        raise NotImplementedError(f"{method_name}: the worlds have no methods")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


def _infos(step: Step) -> list[dict[str, Any]]:
    """What Stable-Baselines3 bootstraps truncated episodes from."""
    infos: list[dict[str, Any]] = [{} for _ in step.reward]
    if step.final is not None:
        for row in np.flatnonzero(step.terminated | step.truncated):
            infos[row] = {
                "terminal_observation": step.final[row],
                "TimeLimit.truncated": bool(step.truncated[row] and not step.terminated[row]),
            }
    return infos
