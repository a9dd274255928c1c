"""Environment ids to environments: the one door through which an actor gets what it steps.

An id is one of
- `CartPole-v1`: registered with Gymnasium; `module:CartPole-v1` imports the module first;
- `ALE/Pong-v5`: Atari, with the field's standard preprocessing (see `actor.atari`);
- `gym:CartPole-v1`: registered with legacy gym;
- `module:callable` or `path/file.py:callable`: yours (see `actor.loading`).
"""

import functools
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from actor.atari import make_atari
from actor.gym_adapter import make_legacy_gym
from actor.loading import import_module, is_callable_id, load_environments, refuse_bare_file
from actor.timestep import TimeStep
from actor.vector import ENVIRONMENT_ERRORS, GymnasiumVector, synchronous
from protos.errors import EnvironmentFailure
from protos.words import text_of

logger = logging.getLogger(__name__)


class VectorEnvironment(Protocol):
    """N environments that step together; rows are as `TimeStep` says."""

    num_envs: int
    observation_space: Any
    """Gymnasium space of one environment."""
    action_space: Any
    """Gymnasium space of one environment."""
    frames_per_second: float
    """Of `render`'s frames, for watching at the speed that the environment means."""

    def reset(self) -> TimeStep:
        """Begin the first episodes, with the seed given at construction; every row is `first`.

        Raises:
            EnvironmentFailure: the environment raised, or its observations do not fit its space.
        """
        ...

    def step(self, actions: np.ndarray) -> TimeStep:
        """Step every environment; one whose row was the last of its episode is reset instead.

        The arrays of a former `TimeStep` may be overwritten.

        Args:
            actions: [N, *shape] of the action spec's dtype.

        Raises:
            EnvironmentFailure: the environment raised, or returned what it must not.
        """
        ...

    def render(self) -> np.ndarray | None:
        """uint8 [H, W, 3] of environment 0; None if it shows nothing."""
        ...

    def close(self) -> None:
        """Release what the environments hold."""
        ...


def make_environment(
    env_id: str, num_envs: int, *, seed: int, render: bool = False
) -> VectorEnvironment:
    """`num_envs` environments of the id, as the module's docstring lists them.

    Args:
        env_id: what to make.
        num_envs: how many; at least 1.
        seed: of all of them together; each environment's own seed is drawn from it.
        render: whether `render()` of environment 0 will be called.

    Raises:
        EnvironmentFailure: there is no such environment, a package that it needs is missing, or it
            failed while it was made; then the environment's own error is the `__cause__`.
        UnsupportedSpace: the wire cannot carry its observations or actions.
    """
    with _logged_warnings():
        try:
            vector = _make_vector(env_id, num_envs, seed, render)
        except EnvironmentFailure:
            raise
        except ENVIRONMENT_ERRORS as error:
            # Whatever an environment's constructor raises: it is other people's code.
            raise EnvironmentFailure(
                f"environment {env_id} cannot be made: {type(error).__name__}: {text_of(error)}"
            ) from error
        return GymnasiumVector(env_id, vector, seed=seed)


def _make_vector(env_id: str, num_envs: int, seed: int, render: bool) -> Any:
    refuse_bare_file(env_id)
    if env_id.startswith("ALE/"):
        return _or_close_names(env_id, functools.partial(make_atari, env_id, num_envs))
    if env_id.startswith("gym:"):
        return synchronous(make_legacy_gym(env_id, num_envs, render=render))
    if is_callable_id(env_id):
        return load_environments(env_id, num_envs, seed=seed, render=render)
    return _or_close_names(env_id, functools.partial(_make_registered, env_id, num_envs, render))


def _make_registered(env_id: str, num_envs: int, render: bool) -> Any:
    """From Gymnasium's registry: its own vectorised version if it has a usable one."""
    module = env_id.rpartition(":")[0]
    if module:
        import_module(module)  # it registers its environments
    if not render:
        try:
            vector = gymnasium.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point")
        except gymnasium.error.Error:
            pass  # it has none; `make` below says so if the id itself is wrong
        else:
            if vector.metadata.get("autoreset_mode") == AutoresetMode.NEXT_STEP:
                return vector
            vector.close()
    # The checker costs time at every step and warns about matters of taste.
    make = functools.partial(gymnasium.make, env_id, disable_env_checker=True)
    shown = [make(render_mode="rgb_array")] if render else []
    return synchronous(shown + [make() for _ in range(num_envs - len(shown))])


def _or_close_names(env_id: str, make: Any) -> Any:
    """What `make` returns; errors of Gymnasium's registry become one line with suggestions."""
    try:
        return make()
    except gymnasium.error.Error as error:
        names = get_close_matches(env_id, gymnasium.registry, cutoff=0.7)
        hint = f"; close names: {', '.join(names)}" if names and env_id not in names else ""
        raise EnvironmentFailure(f"environment {env_id}: {error}{hint}") from None


@contextmanager
def _logged_warnings() -> Iterator[None]:
    """Warnings of environments and their libraries go to the log, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            for text in dict.fromkeys(_words(warning) for warning in caught):
                logger.warning("%s", text)


def _words(warning: warnings.WarningMessage) -> str:
    said = warning.message
    return text_of(said) if isinstance(said, Warning) else said
