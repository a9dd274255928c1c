"""Small environments of every kind, for `tests.actor.toys:NAME`."""

import os
import sys
from typing import Any, ClassVar

import dm_env
import gymnasium
import numpy as np
from dm_env import specs
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.actor import fake_gym


class Walk(gymnasium.Env):
    """Episodes of 3 to 6 steps; those of an even length terminate, the others are truncated.

    The observation, float32 [3]: a random number of the episode, the step, the sum of the actions.
    The reward is the number of the step, as a Python float.
    """

    observation_space: Any = spaces.Box(-100, 100, (3,), np.float32)
    action_space: Any = spaces.Discrete(3)
    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._number = float(self.np_random.random())
        self._length = int(self.np_random.integers(3, 7))
        self._step = 0
        self._sum = 0.0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._step >= self._length:
            raise RuntimeError("stepped after the episode's end")
        self._step += 1
        self._sum += float(np.sum(action))
        ended, even = self._step == self._length, self._length % 2 == 0
        return self.observe(), float(self._step), ended and even, ended and not even, {}

    def observe(self) -> Any:
        return np.array([self._number, self._step, self._sum], np.float32)

    def render(self) -> np.ndarray | None:
        if self.render_mode != "rgb_array":
            return None
        return np.full((21, 34, 3), self._step, np.uint8)


class Wandering(Walk):
    """Changes the current directory of its process."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        os.chdir("/")


class Structured(Walk):
    """Dict, Tuple, Discrete, MultiDiscrete, MultiBinary and Boxes of several dtypes and ranks."""

    observation_space = spaces.Dict(
        {
            "place": spaces.Box(-1, 1, (2,), np.float64),
            "inner": spaces.Tuple(
                (spaces.MultiDiscrete([3, 4]), spaces.Box(0, 255, (2, 2, 1), np.uint8))
            ),
            "count": spaces.Discrete(10, start=-2),
            "bits": spaces.MultiBinary(4),
            "half": spaces.Box(0, 1, (), np.float16),
            "open": spaces.Box(0, 1, (1,), bool),
        }
    )
    action_space = spaces.MultiDiscrete([2, 3])

    def observe(self) -> Any:
        step = self._step
        return {
            "place": np.array([self._number, 0.5]),
            "inner": (np.array([step % 3, step % 4]), np.full((2, 2, 1), step, np.uint8)),
            "count": step - 2,
            "bits": np.array([step >> bit & 1 for bit in range(4)], np.int8),
            "half": np.float16(self._number),
            "open": np.array([step % 2 == 0]),
        }


class Continuous(Walk):
    action_space = spaces.Box(-1, 1, (2,), np.float32)


class Both(Walk):
    """Every third step is terminated and truncated at once."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._step += 1
        ended = self._step == 3
        return self.observe(), 1.0, ended, ended, {}


class MixedInfos(Walk):
    """Infos whose types differ are legal, though Gymnasium cannot merge them."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        *rest, _ = super().step(action)
        return (*rest, {"note": self._step if self._step % 2 else None})  # type: ignore[return-value]


class Failing(Walk):
    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        raise ZeroDivisionError("the wheel came off")


class Unspeakable(Exception):
    """An error of an environment that is careless of what it says."""

    def __str__(self) -> str:
        raise RecursionError("of its own text")

    __repr__ = __str__


class FailingMutely(Walk):
    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        raise Unspeakable


class FailingLoudly(Walk):
    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        raise ValueError("\0\ud800" + "x" * 5_000_000 + "the wheel came off")


class FailingReset(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        raise ZeroDivisionError("no wheel")


class Exiting(Walk):
    """Its own code ends the process, as if all were well, where `where` says."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where
        self._exit_in("__init__")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._exit_in("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._exit_in("step")
        return super().step(action)

    def close(self) -> None:
        self._exit_in("close")

    def _exit_in(self, here: str) -> None:
        if here == self._where:
            self._where = ""  # Once: Gymnasium closes again what was not closed.
            sys.exit(0)


def exits_when_made() -> Walk:
    return Exiting("__init__")


def exits_in_reset() -> Walk:
    return Exiting("reset")


def exits_in_step() -> Walk:
    return Exiting("step")


def exits_in_close() -> Walk:
    return Exiting("close")


class WrongLeaf(Structured):
    """After so many right observations, floats stand where the space says integers."""

    def __init__(self, right: int) -> None:
        super().__init__()
        self._right = right

    def observe(self) -> Any:
        observation = super().observe()
        self._right -= 1
        if self._right < 0:
            counts, image = observation["inner"]
            observation["inner"] = (counts + 0.5, image)
        return observation


def wrong_leaf_in_reset() -> Walk:
    return WrongLeaf(0)


def wrong_leaf_in_step() -> Walk:
    return WrongLeaf(1)


class TextActions(Walk):
    action_space = spaces.Text(5)


class TextObservations(Walk):
    observation_space = spaces.Dict({"words": spaces.Text(5)})


class NotMade(Walk):
    def __init__(self) -> None:
        raise OSError("no simulator here")


SHARED = Walk()


def shared() -> Walk:
    return SHARED


def nothing() -> None:
    return None


def with_keywords(**keywords: Any) -> Walk:
    assert not keywords, keywords
    return Walk()


A_NUMBER = 3


# Vector environments ----------------------------------------------------------------------------


def vector(num_envs: int) -> Any:
    return SyncVectorEnv([Walk] * num_envs)


def manual_vector(num_envs: int) -> Any:
    """Asserts that no row is stepped after its episode's end."""
    return SyncVectorEnv([Walk] * num_envs, autoreset_mode=AutoresetMode.DISABLED)


def same_step_vector(num_envs: int) -> Any:
    return SyncVectorEnv([Walk] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def silent_vector(num_envs: int) -> Any:
    made = SyncVectorEnv([Walk] * num_envs)
    del made.metadata["autoreset_mode"]
    return made


def vector_of_two() -> Any:
    return SyncVectorEnv([Walk] * 2)


class _Columns(SyncVectorEnv):
    def step(self, actions: Any) -> Any:
        observation, reward, *rest = super().step(actions)
        return (observation, reward[:, None], *rest)


def vector_with_columns(num_envs: int) -> Any:
    return _Columns([Walk] * num_envs)


class _Doubles(SyncVectorEnv):
    def reset(self, **keywords: Any) -> Any:
        observation, info = super().reset(**keywords)
        return observation[:, :2], info


def vector_with_short_observations(num_envs: int) -> Any:
    return _Doubles([Walk] * num_envs)


# Legacy gym -------------------------------------------------------------------------------------


class OldWalk(fake_gym.Env):
    """gym 0.21's API: four values, `seed()`, `TimeLimit.truncated`; wants its action as an int."""

    metadata: Any = {"video.frames_per_second": 12}  # noqa: RUF012  # as gym's are

    def __init__(self) -> None:
        self._walk = Walk("rgb_array")
        self._first_seed: int | None = None
        self.observation_space: Any = fake_gym.Box(
            np.full(3, -100, np.float32), np.full(3, 100, np.float32), np.dtype(np.float32)
        )
        self.action_space: Any = fake_gym.Discrete(3)

    def seed(self, seed: int) -> list[int]:
        self._first_seed = seed
        return [seed]

    def reset(self) -> Any:
        observation, _ = self._walk.reset(seed=self._first_seed)
        self._first_seed = None
        return observation

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        assert type(action) is int
        observation, reward, terminated, truncated, info = self._walk.step(action)
        if truncated:
            info["TimeLimit.truncated"] = True
        return observation, reward, terminated or truncated, info

    def render(self, mode: str = "human") -> Any:
        return self._walk.render() if mode == "rgb_array" else None


class FootballLike(OldWalk):
    """As Google Research Football: stacked images, 19 actions, no seed."""

    metadata: Any = None
    seed: Any = 0  # an attribute, no method

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._first_seed = seed
        images = np.zeros((72, 96, 4), np.uint8)
        self.observation_space = fake_gym.Box(images, images + 255, np.dtype(np.uint8))
        self.action_space = fake_gym.Discrete(19)

    def reset(self) -> Any:
        return self._image(super().reset())

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        observation, *rest = super().step(action)
        return (self._image(observation), *rest)

    def _image(self, observation: np.ndarray) -> np.ndarray:
        return np.full((72, 96, 4), 200 * observation[0] + observation[1], np.uint8)


class NewerOldWalk(OldWalk):
    """gym 0.26's API: five values, the seed in `reset`; the observation is a pair."""

    seed: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = fake_gym.Tuple((self.observation_space, fake_gym.Discrete(7)))

    def reset(self, *, seed: int | None = None) -> Any:
        observation, info = self._walk.reset(seed=seed)
        return (observation, self._walk._step), info

    def step(self, action: Any) -> Any:
        observation, *rest = self._walk.step(action)
        return ((observation, self._walk._step), *rest)


class ThreeValues(OldWalk):
    def step(self, action: Any) -> Any:
        return super().step(action)[:3]


# dm_env -----------------------------------------------------------------------------------------


class DmWalk(dm_env.Environment):
    """`Walk` by dm_env: LAST with discount 0 where it terminates, else with discount 0.5."""

    def __init__(self, seed: int) -> None:
        self._walk = Walk()
        self._seed: int | None = seed

    def reset(self) -> dm_env.TimeStep:
        observation, _ = self._walk.reset(seed=self._seed)
        self._seed = None
        return dm_env.restart(self._observation(observation))

    def step(self, action: Any) -> dm_env.TimeStep:
        self.action_spec().validate(action)
        observation, reward, terminated, truncated, _ = self._walk.step(action)
        observed = self._observation(observation)
        if terminated:
            return dm_env.termination(np.float64(reward), observed)
        if truncated:
            return dm_env.truncation(reward, observed, discount=0.5)
        return dm_env.transition(reward, observed, discount=0.9)

    def observation_spec(self) -> Any:
        return {
            "free": specs.Array((3,), np.float32),
            "step": (specs.DiscreteArray(7), specs.BoundedArray((), np.int32, 0, 6)),
        }

    def action_spec(self) -> Any:
        return specs.DiscreteArray(3)

    def _observation(self, observation: np.ndarray) -> Any:
        step = np.int32(observation[1])
        return {"free": observation, "step": (step, step)}


class DmAlwaysFirst(DmWalk):
    def step(self, action: Any) -> dm_env.TimeStep:
        return self.reset()
