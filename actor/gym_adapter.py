"""Legacy gym environments, of either API, as Gymnasium ones.

gym 0.26 returns five values from `step` and takes the seed in `reset`; gym 0.21 to 0.25 return four,
with `TimeLimit.truncated` in the info, and have `seed()`. Spaces and environments are known by their
names and methods: gym itself is imported for `gym:ID` alone.
"""

import contextlib
import inspect
import io
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from protos.errors import EnvironmentFailure, UnsupportedSpace


def make_legacy_gym(env_id: str, num_envs: int, *, render: bool) -> list[Any]:
    """Environments of gym's registry; `env_id` is `gym:ID`.

    Raises:
        EnvironmentFailure: gym is not installed, or has no such environment.
    """
    try:
        # On import gym writes to stderr that it is no longer maintained.
        with contextlib.redirect_stderr(io.StringIO()):
            import gym
    except ImportError as error:
        raise EnvironmentFailure(
            f"environment {env_id} needs gym ({error}): pip install 'seedbed[gym]'"
        ) from None
    # The checker of gym 0.26 fails in every step with NumPy 2 (np.bool8).
    keywords = {"disable_env_checker": True, **({"render_mode": "rgb_array"} if render else {})}
    try:
        return [LegacyGym(gym.make(env_id.removeprefix("gym:"), **keywords)) for _ in range(num_envs)]
    except gym.error.Error as error:
        raise EnvironmentFailure(f"environment {env_id}: {error}") from None


class LegacyGym(gymnasium.Env):  # type: ignore[misc]  # Gymnasium is untyped here
    """A legacy gym environment as a Gymnasium one."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self.observation_space = convert_space(environment.observation_space)
        self.action_space = convert_space(environment.action_space)
        self.metadata = _metadata(environment)
        self._discrete = isinstance(self.action_space, spaces.Discrete)
        inner = getattr(environment, "unwrapped", environment)
        self._reset_takes_seed = _accepts(inner.reset, "seed") and _accepts(environment.reset, "seed")
        self._render_takes_mode = _accepts(getattr(inner, "render", None), "mode")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None and self._reset_takes_seed:
            return self._observation_of(self._environment.reset(seed=seed)), {}
        if seed is not None and callable(getattr(self._environment, "seed", None)):
            self._environment.seed(seed)
        return self._observation_of(self._environment.reset()), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        # Some of these environments look for an int, not for NumPy's.
        result = self._environment.step(int(action) if self._discrete else action)
        if len(result) == 5:
            return result  # type: ignore[no-any-return]
        if len(result) != 4:
            raise ValueError(f"step() must return 4 or 5 values, found {len(result)}")
        observation, reward, done, info = result
        truncated = bool(done and info.get("TimeLimit.truncated", False))
        return observation, reward, bool(done) and not truncated, truncated, info

    def render(self) -> Any:
        if not hasattr(self._environment, "render"):
            return None
        if self._render_takes_mode:
            return self._environment.render(mode="rgb_array")
        return self._environment.render()

    def close(self) -> None:
        if hasattr(self._environment, "close"):
            self._environment.close()

    def _observation_of(self, result: Any) -> Any:
        """`reset` returns an observation, or (observation, info); an observation may be a pair, too."""
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            return result
        space = self.observation_space
        second = space[1] if isinstance(space, spaces.Tuple) and len(space) == 2 else None
        if isinstance(second, spaces.Dict) and second.spaces.keys() == result[1].keys():
            return result
        return result[0]


def _metadata(environment: Any) -> dict[str, Any]:
    metadata = getattr(environment, "metadata", None) or {}
    frames = metadata.get("render_fps") or metadata.get("video.frames_per_second")
    return {"render_fps": frames} if frames else {}


def _accepts(function: Any, name: str) -> bool:
    if not callable(function):
        return False
    parameters = inspect.signature(function).parameters
    return name in parameters or any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()
    )


# Spaces -----------------------------------------------------------------------------------------


def convert_space(space: Any) -> Any:
    """A gym space as the Gymnasium space of the same name.

    Raises:
        UnsupportedSpace: Gymnasium has no counterpart that the wire carries.
    """
    if isinstance(space, spaces.Space):
        return space
    for kind in type(space).__mro__:
        if kind.__name__ in _CONVERSIONS:
            return _CONVERSIONS[kind.__name__](space)
    raise UnsupportedSpace(
        f"space {space} ({type(space).__module__}.{type(space).__name__}) is not supported: "
        f"expected one of {', '.join(_CONVERSIONS)}"
    )


def _discrete(space: Any) -> Any:
    return spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0)))


def _multi_discrete(space: Any) -> Any:
    return spaces.MultiDiscrete(np.asarray(space.nvec), dtype=space.dtype)


def _multi_binary(space: Any) -> Any:
    return spaces.MultiBinary(space.n)


def _box(space: Any) -> Any:
    return spaces.Box(np.asarray(space.low), np.asarray(space.high), dtype=space.dtype)


def _dict(space: Any) -> Any:
    return spaces.Dict({key: convert_space(child) for key, child in space.spaces.items()})


def _tuple(space: Any) -> Any:
    return spaces.Tuple(tuple(convert_space(child) for child in space.spaces))


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": _multi_binary,
    "Dict": _dict,
    "Tuple": _tuple,
}
