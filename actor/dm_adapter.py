"""dm_env environments as Gymnasium ones; dm_env itself is not imported.

The last step of an episode is terminated if its discount is 0, else truncated. Discounts between
are not passed on: discounting is the learner's. dm_env has no seeds: a callable that makes such an
environment takes `seed` and is given one.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from protos.errors import UnsupportedSpace


class DmEnvironment(gymnasium.Env):  # type: ignore[misc]  # Gymnasium is untyped here
    """A dm_env environment as a Gymnasium one."""

    metadata: dict[str, Any] = {}  # noqa: RUF012  # as the base class declares it

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self.observation_space = observation_space(environment.observation_spec())
        action_spec = environment.action_spec()
        self.action_space = action_space(action_spec)
        self._action_dtype = getattr(action_spec, "dtype", None)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        return self._environment.reset().observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        # These environments check the dtype.
        timestep = self._environment.step(np.asarray(action, self._action_dtype)[()])
        if timestep.first():
            raise ValueError("step() must return MID or LAST before the episode's end, found FIRST")
        terminated = bool(timestep.last() and timestep.discount == 0)
        truncated = bool(timestep.last() and not terminated)
        return timestep.observation, float(timestep.reward), terminated, truncated, {}

    def render(self) -> None:
        return None  # dm_env knows no such thing

    def close(self) -> None:
        if hasattr(self._environment, "close"):
            self._environment.close()


def observation_space(spec: Any) -> Any:
    """The Gymnasium space of an observation spec: an array spec, or mappings and sequences of them.

    Raises:
        UnsupportedSpace: a spec of something else than numbers.
    """
    if isinstance(spec, Mapping):
        return spaces.Dict({key: observation_space(child) for key, child in spec.items()})
    if isinstance(spec, tuple | list):
        return spaces.Tuple(tuple(observation_space(child) for child in spec))
    if hasattr(spec, "num_values"):
        return spaces.Discrete(int(spec.num_values))
    if np.dtype(spec.dtype).kind not in "biuf":
        raise UnsupportedSpace(f"dm_env spec {spec} is not supported: expected an array of numbers")
    low, high = _bounds(spec)
    return spaces.Box(low, high, dtype=spec.dtype)


def action_space(spec: Any) -> Any:
    """The Gymnasium space of an action spec; bounded integers are categories.

    Raises:
        UnsupportedSpace: a spec of something else than numbers.
    """
    is_array = hasattr(spec, "dtype") and not hasattr(spec, "num_values")
    if not (is_array and hasattr(spec, "minimum") and np.dtype(spec.dtype).kind in "iu"):
        return observation_space(spec)
    low, high = (bound.astype(np.int64) for bound in _bounds(spec))
    if spec.shape == ():
        return spaces.Discrete(int(high - low) + 1, start=int(low))
    return spaces.MultiDiscrete(high - low + 1, start=low)


def _bounds(spec: Any) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest values, of the spec's shape and dtype."""
    dtype = np.dtype(spec.dtype)
    if hasattr(spec, "minimum"):
        low, high = spec.minimum, spec.maximum
    elif dtype.kind == "f":
        low, high = -np.inf, np.inf
    elif dtype.kind == "b":
        low, high = False, True
    else:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return np.full(spec.shape, low, dtype), np.full(spec.shape, high, dtype)
