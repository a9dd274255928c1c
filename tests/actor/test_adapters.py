"""Legacy gym and dm_env: spaces, specs, and what is not understood."""

from typing import Any

import numpy as np
import pytest
from dm_env import specs
from gymnasium import spaces

from actor.adapters import as_gymnasium
from actor.dm_adapter import action_space, observation_space
from actor.environments import make_environment
from actor.gym_adapter import LegacyGym, convert_space
from protos.errors import EnvironmentFailure, UnsupportedSpace
from tests.actor import fake_gym, toys

LOW, HIGH = np.array([0, 2], np.uint8), np.array([4, 5], np.uint8)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (fake_gym.Box(LOW, HIGH, LOW.dtype), spaces.Box(LOW, HIGH, dtype=np.uint8)),
        (fake_gym.Discrete(4), spaces.Discrete(4)),
        (fake_gym.SubDiscrete(4), spaces.Discrete(4)),
        (fake_gym.MultiDiscrete([2, 3]), spaces.MultiDiscrete([2, 3])),
        (fake_gym.MultiBinary(3), spaces.MultiBinary(3)),
        (
            fake_gym.Dict({"a": fake_gym.Discrete(2), "b": fake_gym.Tuple([fake_gym.Discrete(3)])}),
            spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.Discrete(3)])}),
        ),
        (spaces.Discrete(5), spaces.Discrete(5)),
    ],
)
def test_gym_spaces_become_gymnasium_ones(space: Any, expected: Any) -> None:
    assert convert_space(space) == expected


def test_gym_spaces_without_counterpart_are_refused_by_name() -> None:
    with pytest.raises(
        UnsupportedSpace, match=r"\(tests.actor.fake_gym.Graph\) is not supported: expected one of "
    ):
        convert_space(fake_gym.Graph())


def test_real_gym_spaces_keep_their_start() -> None:
    gym_spaces = pytest.importorskip("gym.spaces")
    assert convert_space(gym_spaces.Discrete(3, start=2)) == spaces.Discrete(3, start=2)


class PairOfDict(toys.OldWalk):
    """Its observation looks like (observation, info)."""

    def __init__(self) -> None:
        super().__init__()
        inner = fake_gym.Dict({"speed": fake_gym.Discrete(3)})
        self.observation_space = fake_gym.Tuple((fake_gym.Discrete(3), inner))

    def reset(self) -> Any:
        return (1, {"speed": 2})


def test_an_observation_that_looks_like_observation_and_info_is_kept() -> None:
    assert LegacyGym(PairOfDict()).reset()[0] == (1, {"speed": 2})


def test_other_numbers_of_values_are_refused() -> None:
    environment = make_environment("tests.actor.toys:ThreeValues", 1, seed=1)
    environment.reset()
    with pytest.raises(EnvironmentFailure, match=r"step\(\) must return 4 or 5 values, found 3"):
        environment.step(np.zeros(1, np.int64))


def test_a_time_limit_at_the_very_end_is_a_termination() -> None:
    """gym's TimeLimit sets the key to False where the episode ended by itself at the same step."""
    environment = LegacyGym(toys.OldWalk())
    environment._environment.step = lambda _: (np.zeros(3), 1.0, True, {"TimeLimit.truncated": False})
    assert environment.step(0)[2:4] == (True, False)


class Closing(toys.OldWalk):
    closed = False

    def close(self) -> None:
        self.closed = True


def test_closing_reaches_the_environment() -> None:
    inner = Closing()
    LegacyGym(inner).close()
    assert inner.closed
    LegacyGym(toys.OldWalk()).close()  # this one has nothing to close


# dm_env -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (specs.Array((2,), np.float64), spaces.Box(-np.inf, np.inf, (2,), np.float64)),
        (specs.Array((), np.int16), spaces.Box(-(2**15), 2**15 - 1, (), np.int16)),
        (specs.Array((2,), bool), spaces.Box(0, 1, (2,), bool)),
        (specs.BoundedArray((2,), np.uint8, LOW, HIGH), spaces.Box(LOW, HIGH, dtype=np.uint8)),
        (specs.BoundedArray((2,), np.uint8, 0, 5), spaces.Box(0, 5, (2,), np.uint8)),
        (specs.DiscreteArray(4), spaces.Discrete(4)),
        ([specs.DiscreteArray(4)], spaces.Tuple([spaces.Discrete(4)])),
        (
            {"a": {"b": specs.DiscreteArray(4)}},
            spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(4)})}),
        ),
    ],
)
def test_observation_specs_become_spaces(spec: Any, expected: Any) -> None:
    assert observation_space(spec) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (specs.DiscreteArray(4), spaces.Discrete(4)),
        (specs.BoundedArray((), np.int32, 2, 5), spaces.Discrete(4, start=2)),
        (specs.BoundedArray((2,), np.int32, [0, 1], [2, 5]), spaces.MultiDiscrete([3, 5], start=[0, 1])),
        (specs.BoundedArray((2,), np.float32, -1, 1), spaces.Box(-1, 1, (2,), np.float32)),
    ],
)
def test_action_specs_become_spaces(spec: Any, expected: Any) -> None:
    assert action_space(spec) == expected


def test_specs_of_text_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedSpace, match=r"dm_env spec StringArray.* is not supported"):
        observation_space(specs.StringArray((), name="words"))


def test_a_dm_environment_that_starts_over_by_itself_is_refused() -> None:
    environment = make_environment("tests.actor.toys:DmAlwaysFirst", 1, seed=1)
    environment.reset()
    with pytest.raises(EnvironmentFailure, match="MID or LAST before the episode's end, found FIRST"):
        environment.step(np.zeros(1, np.int64))


# Neither ----------------------------------------------------------------------------------------


class LegacyVector(toys.OldWalk):
    single_observation_space = None


def test_vector_environments_of_other_libraries_are_refused() -> None:
    with pytest.raises(EnvironmentFailure, match="a LegacyVector, a vector environment, but not"):
        as_gymnasium(LegacyVector(), "x:y")


def test_what_has_no_known_interface_is_refused() -> None:
    with pytest.raises(
        EnvironmentFailure, match="environment x:y returned a NoneType: expected a Gymnasium Env"
    ):
        as_gymnasium(None, "x:y")
