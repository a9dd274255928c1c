"""Gymnasium's vector environments as rows of the wire: `TimeStep`s by NEXT_STEP autoreset."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper

from actor.timestep import TimeStep
from protos.errors import EnvironmentFailure, InvalidRequest, UnsupportedSpace
from protos.specs import flattener, from_spaces
from protos.tensors import REWARD, describe, fits
from protos.words import text_of

NO_REWARD = np.float32(0)
BOOL = np.dtype(np.bool_)
DEFAULT_FRAMES_PER_SECOND = 30
ENVIRONMENT_ERRORS = (Exception, SystemExit)
"""What an environment's code may raise. `sys.exit` there ends no process of ours, least of all with
status 0, which would say that all went well."""


def environment_seeds(seed: int, num_envs: int) -> list[int]:
    """A seed of 31 bits for each environment, drawn from `seed`: so actors with neighbouring seeds
    share none, and old environments, which take no larger ones, are content."""
    return (np.random.SeedSequence(seed).generate_state(num_envs) >> 1).tolist()  # type: ignore[no-any-return]


class GymnasiumVector:
    """A Gymnasium `VectorEnv` as a `VectorEnvironment`.

    A row that is terminated and truncated at once is passed on as terminated: the episode ended in
    the environment's own terms, and nothing follows to bootstrap from.
    """

    def __init__(self, env_id: str, vector: Any, *, seed: int) -> None:
        self._env_id = env_id
        self._vector = _with_next_step(vector, env_id)
        self.num_envs: int = vector.num_envs
        self.observation_space = vector.single_observation_space
        self.action_space = vector.single_action_space
        self.frames_per_second = float(vector.metadata.get("render_fps", DEFAULT_FRAMES_PER_SECOND))
        try:
            self._leaves = from_spaces(self.observation_space, self.action_space).observation
        except UnsupportedSpace as error:
            raise UnsupportedSpace(f"environment {env_id}: {error}") from None
        self._seed = environment_seeds(seed, 1)[0]
        self._shape = (self.num_envs,)
        self._last = np.zeros(self.num_envs, bool)

    def reset(self) -> TimeStep:
        try:
            observation, _ = self._vector.reset(seed=self._seed)
        except ENVIRONMENT_ERRORS as error:
            self._check_each("reset()")
            raise self._failure("reset()", error) from error
        # Once: later ones are as the first, and what they hold is looked at when they are sent.
        self._check(observation, "reset()", self.num_envs)
        none = np.zeros(self.num_envs, bool)
        self._last = none
        return TimeStep(observation, np.zeros(self.num_envs, np.float32), none, none, ~none)

    def step(self, actions: np.ndarray) -> TimeStep:
        try:
            observation, reward, terminated, truncated, _ = self._vector.step(actions)
        except ENVIRONMENT_ERRORS as error:
            self._check_each("step()")
            raise self._failure("step()", error) from error
        first = self._last
        terminated = self._rows("terminated", terminated, BOOL)
        truncated = self._rows("truncated", truncated, BOOL)
        reward = self._rows("reward", reward, REWARD)
        # Few steps begin or end an episode: to look is cheaper than to compute.
        if np.count_nonzero(terminated):
            truncated = truncated & ~terminated
        if np.count_nonzero(first):
            reward = np.where(first, NO_REWARD, reward)
        self._last = terminated | truncated
        return TimeStep(observation, reward, terminated, truncated, first)

    def render(self) -> np.ndarray | None:
        try:
            frames = self._vector.render()
        except ENVIRONMENT_ERRORS as error:
            raise self._failure("render()", error) from error
        if frames is None or len(frames) == 0 or frames[0] is None:
            return None
        return np.asarray(frames[0], np.uint8)

    def close(self) -> None:
        try:
            self._vector.close()
        except ENVIRONMENT_ERRORS as error:
            raise self._failure("close()", error) from error

    def _rows(self, what: str, values: Any, dtype: np.dtype[Any]) -> np.ndarray:
        """`values` as [N] of the dtype."""
        array = np.asarray(values)
        if array.shape != self._shape or not fits(array, dtype):
            raise EnvironmentFailure(
                f"environment {self._env_id}: step() must return {what} as "
                f"{dtype}[{self.num_envs}], found {describe(array, dtype)}"
            )
        return array.astype(dtype, copy=False)

    def _check(self, observation: Any, where: str, *rows: int) -> None:
        """Refuse an observation that does not fit the space; `rows` are its leading dimensions."""
        try:
            arrays = flattener(self._leaves)(observation)
        except InvalidRequest as error:
            raise EnvironmentFailure(f"environment {self._env_id}: {error}") from None
        for leaf, array in zip(self._leaves, map(np.asarray, arrays), strict=True):
            shape = (*rows, *leaf.shape)
            if array.shape != shape or not fits(array, leaf.dtype):
                raise EnvironmentFailure(
                    f"environment {self._env_id}: {where} must return the observation "
                    f"{leaf.name!r} as {leaf.dtype}{list(shape)}, as its space says, "
                    f"found {describe(array, leaf.dtype)}"
                ) from None

    def _check_each(self, where: str) -> None:
        """Refuse one that Gymnasium has failed to put together with the others."""
        if isinstance(self._vector, _Synchronous):
            for observation in self._vector.last_observations():
                self._check(observation, where)

    def _failure(self, where: str, error: BaseException) -> EnvironmentFailure:
        return EnvironmentFailure(
            f"environment {self._env_id} failed in {where}: {type(error).__name__}: {text_of(error)}"
        )


# Single environments as one vector --------------------------------------------------------------


def synchronous(environments: Sequence[Any]) -> Any:
    """Gymnasium environments, stepped one after the other in this process."""
    return _Synchronous([functools.partial(_made_before, one) for one in environments])


def _made_before(environment: Any) -> Any:
    return environment


class _Synchronous(SyncVectorEnv):  # type: ignore[misc]  # Gymnasium is untyped here
    def last_observations(self) -> list[Any]:
        """Of each environment that has shown any."""
        return [each for each in self._env_obs if each is not None]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        seeds = None if seed is None else environment_seeds(seed, self.num_envs)
        return super().reset(seed=seeds, options=options)

    def _add_info(self, vector_infos: dict[str, Any], *_: Any) -> dict[str, Any]:
        # Nobody reads infos; merging them takes time, and fails where two differ in type.
        return vector_infos

    def render(self) -> tuple[Any, ...]:
        return (self.envs[0].render(),)


# Autoreset modes --------------------------------------------------------------------------------


def _with_next_step(vector: Any, env_id: str) -> Any:
    """`vector` with NEXT_STEP autoreset.

    Raises:
        EnvironmentFailure: its mode hides what the learner must see, or is not known.
    """
    mode = vector.metadata.get("autoreset_mode")
    if mode in (AutoresetMode.NEXT_STEP, AutoresetMode.NEXT_STEP.value):
        return vector
    if mode in (AutoresetMode.DISABLED, AutoresetMode.DISABLED.value):
        return _ManualReset(vector)
    found = mode.name if isinstance(mode, AutoresetMode) else repr(mode)
    raise EnvironmentFailure(
        f"environment {env_id}: expected metadata['autoreset_mode'] to be "
        f"gymnasium.vector.AutoresetMode.NEXT_STEP or DISABLED, found {found}. SAME_STEP loses the "
        "last observation of a truncated episode; make the vector environment with NEXT_STEP, or "
        "return a single environment from the callable"
    )


class _ManualReset(VectorWrapper):  # type: ignore[misc]  # Gymnasium is untyped here
    """NEXT_STEP from an environment that resets only when told to (DISABLED).

    Its `step` always steps every row. Rows whose episode is over must not be stepped, so they are
    reset before it, and again after it: the one step between goes nowhere.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._last = np.zeros(self.num_envs, bool)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self._last = np.zeros(self.num_envs, bool)
        return self.env.reset(seed=seed, options=options)  # type: ignore[no-any-return]

    def step(self, actions: np.ndarray) -> tuple[Any, Any, Any, Any, Any]:
        last = self._last
        if last.any():
            self.env.reset(options={"reset_mask": last.copy()})
        observation, reward, terminated, truncated, info = self.env.step(actions)
        if last.any():
            observation, info = self.env.reset(options={"reset_mask": last.copy()})
            terminated, truncated = terminated & ~last, truncated & ~last
        self._last = terminated | truncated
        return observation, reward, terminated, truncated, info
