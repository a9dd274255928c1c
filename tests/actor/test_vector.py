"""Vector environments: autoreset modes, malformed rows, failures, frames."""

import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from actor.environments import make_environment
from actor.vector import GymnasiumVector
from protos.errors import EnvironmentFailure
from tests.actor.contract import walk
from tests.actor.toys import Structured, Walk

TOYS = "tests.actor.toys"


@pytest.mark.parametrize(
    ("name", "found"), [("same_step_vector", "found SAME_STEP"), ("silent_vector", "found None")]
)
def test_other_autoreset_modes_are_refused_with_the_way_out(name: str, found: str) -> None:
    with pytest.raises(EnvironmentFailure) as caught:
        make_environment(f"{TOYS}:{name}", 2, seed=1)
    message = str(caught.value)
    assert message.startswith(f"environment {TOYS}:{name}: ")
    assert found in message
    assert "make the vector environment with NEXT_STEP" in message


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP.value, AutoresetMode.DISABLED.value])
def test_modes_may_be_given_as_text(mode: str) -> None:
    vector = SyncVectorEnv([Walk] * 2, autoreset_mode=mode)
    vector.metadata["autoreset_mode"] = mode
    environment = GymnasiumVector("toy", vector, seed=1)
    environment.reset()
    ended = np.zeros(2, bool)
    for _ in range(15):  # raises where a row is stepped after its end
        timestep = environment.step(np.zeros(2, np.int64))
        ended |= timestep.terminated | timestep.truncated
    assert ended.all()


def test_columns_instead_of_rows_are_refused() -> None:
    environment = make_environment(f"{TOYS}:vector_with_columns", 2, seed=1)
    environment.reset()
    with pytest.raises(
        EnvironmentFailure,
        match=r"step\(\) must return reward as float32\[2\], found float64\[2, 1\]",
    ):
        environment.step(np.zeros(2, np.int64))


def test_observations_of_another_shape_than_their_space_are_refused() -> None:
    environment = make_environment(f"{TOYS}:vector_with_short_observations", 2, seed=1)
    with pytest.raises(
        EnvironmentFailure,
        match=r"must return the observation '' as float32\[2, 3\], as its space says, found "
        r"float32\[2, 2\]",
    ):
        environment.reset()


def test_observations_that_do_not_fit_their_space_are_refused() -> None:
    vector = SyncVectorEnv([Walk] * 2)
    vector.single_observation_space = Box(-128, 127, (3,), np.int8)
    environment = GymnasiumVector("toy", vector, seed=1)
    shown = np.array([[1, 2, 127], [4, 5, 6]])
    vector.reset = lambda **_: (shown, {})
    environment.reset()
    shown[0, 2] = 128
    with pytest.raises(
        EnvironmentFailure,
        match=r"must return the observation '' as int8\[2, 3\], as its space says, "
        r"found int64\[2, 3\] of 1 to 128$",
    ):
        environment.reset()


WRONG_LEAF = (
    r"must return the observation 'inner/0' as int64\[2\], as its space says, found float64\[2\]$"
)


def test_an_array_of_a_dict_that_does_not_fit_is_named() -> None:
    environment = make_environment(f"{TOYS}:wrong_leaf_in_reset", 2, seed=1)
    with pytest.raises(EnvironmentFailure, match=rf"reset\(\) {WRONG_LEAF}") as caught:
        environment.reset()
    assert caught.value.__cause__ is None  # the message says it all: no traceback
    environment = make_environment(f"{TOYS}:wrong_leaf_in_step", 2, seed=1)
    environment.reset()
    with pytest.raises(EnvironmentFailure, match=rf"step\(\) {WRONG_LEAF}"):
        environment.step(np.zeros((2, 2), np.int64))


def test_observations_of_another_structure_are_refused() -> None:
    vector = SyncVectorEnv([Structured] * 2)
    environment = GymnasiumVector("toy", vector, seed=1)
    vector.reset = lambda **_: ({}, {})
    with pytest.raises(EnvironmentFailure, match=r"environment toy: observation: expected an entry"):
        environment.reset()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Failing", r"failed in step\(\): ZeroDivisionError: the wheel came off"),
        ("FailingReset", r"failed in reset\(\): ZeroDivisionError: no wheel"),
    ],
)
def test_what_an_environment_raises_is_the_cause(name: str, message: str) -> None:
    environment = make_environment(f"{TOYS}:{name}", 2, seed=1)
    with pytest.raises(EnvironmentFailure, match=f"environment {TOYS}:{name} {message}") as caught:
        walk(environment, 1)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_failures_in_render_and_close_name_the_environment() -> None:
    vector = SyncVectorEnv([Walk] * 2)
    environment = GymnasiumVector("toy", vector, seed=1)
    vector.render = vector.close = lambda: 1 / 0
    with pytest.raises(EnvironmentFailure, match=r"environment toy failed in render\(\)"):
        environment.render()
    with pytest.raises(EnvironmentFailure, match=r"environment toy failed in close\(\)"):
        environment.close()
    del vector.close


def test_reset_begins_the_same_stream_again() -> None:
    environment = make_environment(f"{TOYS}:Walk", 2, seed=1)
    first = environment.reset().observation
    environment.step(np.zeros(2, np.int64))
    np.testing.assert_array_equal(environment.reset().observation, first)


@pytest.mark.parametrize("name", ["Walk", "OldWalk"])
def test_frames_are_those_of_environment_0(name: str) -> None:
    environment = make_environment(f"{TOYS}:{name}", 2, seed=1, render=True)
    environment.reset()
    environment.step(np.zeros(2, np.int64))
    frame = environment.render()
    assert frame is not None
    assert frame.dtype == np.uint8
    assert frame.shape == (21, 34, 3)
    assert (frame == 1).all()


@pytest.mark.parametrize("name", ["Walk", "DmWalk", "vector"])
def test_what_shows_nothing_renders_none(name: str) -> None:
    environment = make_environment(f"{TOYS}:{name}", 2, seed=1)
    environment.reset()
    assert environment.render() is None


def test_frames_per_second_come_from_the_environment() -> None:
    assert make_environment(f"{TOYS}:Walk", 1, seed=1).frames_per_second == 10
    assert make_environment(f"{TOYS}:OldWalk", 1, seed=1).frames_per_second == 12
    assert make_environment(f"{TOYS}:DmWalk", 1, seed=1).frames_per_second == 30
