"""Whatever a user's callable returns, as a Gymnasium environment."""

from typing import Any

import gymnasium

from actor.dm_adapter import DmEnvironment
from actor.gym_adapter import LegacyGym
from protos.errors import EnvironmentFailure


def as_gymnasium(environment: Any, env_id: str) -> Any:
    """A single environment of any known interface as a `gymnasium.Env`.

    Interfaces are known by their methods, so that neither gym nor dm_env must be installed.

    Raises:
        EnvironmentFailure: no known interface.
    """
    if isinstance(environment, gymnasium.Env):
        return environment
    if _has(environment, "step", "reset", "observation_spec", "action_spec"):
        return DmEnvironment(environment)
    if _has(environment, "single_observation_space"):
        raise EnvironmentFailure(
            f"environment {env_id} returned a {_name(environment)}, a vector environment, but not "
            "Gymnasium's: return a gymnasium.vector.VectorEnv, or a single environment"
        )
    if _has(environment, "step", "reset", "observation_space", "action_space"):
        return LegacyGym(environment)
    raise EnvironmentFailure(
        f"environment {env_id} returned a {_name(environment)}: expected a Gymnasium Env or VectorEnv, "
        "a gym environment or a dm_env one"
    )


def _has(environment: Any, *names: str) -> bool:
    return all(hasattr(environment, name) for name in names)


def _name(environment: Any) -> str:
    return type(environment).__name__
