"""Every kind of environment keeps the contract; ids that name nothing are refused with a way out."""

import logging
from contextlib import closing
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import SyncVectorEnv

from actor.environments import make_environment
from actor.vector import environment_seeds
from protos.errors import EnvironmentFailure, UnsupportedSpace
from tests.actor.contract import EnvironmentContract, walk

TOYS = "tests.actor.toys"


class TestRegisteredVector(EnvironmentContract):
    env_id = "CartPole-v1"

    def test_is_the_environments_own_vector(self) -> None:
        assert isinstance(self.make()._vector, CartPoleVectorEnv)  # type: ignore[attr-defined]

    def test_is_truncated_at_the_time_limit(self) -> None:
        environment = self.make()
        environment.reset()
        vector = environment._vector  # type: ignore[attr-defined]
        vector.steps[:] = vector.max_episode_steps - 1
        timestep = environment.step(np.zeros(3, np.int64))
        assert timestep.truncated.all()
        assert not timestep.terminated.any()


class TestRegisteredSingle(EnvironmentContract):
    env_id = "FrozenLake-v1"
    steps = 60

    def test_is_made_of_single_environments(self) -> None:
        assert isinstance(self.make()._vector, SyncVectorEnv)  # type: ignore[attr-defined]


class TestTuples(EnvironmentContract):
    env_id = "Blackjack-v1"


class TestSingle(EnvironmentContract):
    env_id = f"{TOYS}:Walk"


class TestStructured(EnvironmentContract):
    env_id = f"{TOYS}:Structured"


class TestContinuous(EnvironmentContract):
    env_id = f"{TOYS}:Continuous"


class TestBothEnds(EnvironmentContract):
    env_id = f"{TOYS}:Both"

    def test_terminated_wins(self) -> None:
        timesteps = walk(self.make(), 3)
        assert timesteps[3].terminated.all()
        assert not timesteps[3].truncated.any()


class TestMixedInfos(EnvironmentContract):
    env_id = f"{TOYS}:MixedInfos"


class TestOneEnvironment(EnvironmentContract):
    env_id = f"{TOYS}:Walk"
    num_envs = 1


class TestVector(EnvironmentContract):
    env_id = f"{TOYS}:vector"


class TestManualVector(EnvironmentContract):
    env_id = f"{TOYS}:manual_vector"


class TestOldGym(EnvironmentContract):
    env_id = f"{TOYS}:OldWalk"


class TestFootball(EnvironmentContract):
    env_id = f"{TOYS}:FootballLike"


class TestNewerOldGym(EnvironmentContract):
    env_id = f"{TOYS}:NewerOldWalk"


class TestGymRegistry(EnvironmentContract):
    env_id = "gym:CartPole-v1"
    steps = 60


class TestDm(EnvironmentContract):
    env_id = f"{TOYS}:DmWalk"


@pytest.mark.parametrize(
    "name", ["Walk", "vector", "manual_vector", "OldWalk", "NewerOldWalk", "DmWalk", "Structured"]
)
def test_episodes_end_as_the_environment_says(name: str) -> None:
    """An episode of an even length is terminated, of an odd one truncated; rewards count steps."""
    ends = {True: 0, False: 0}
    for timestep in walk(make_environment(f"{TOYS}:{name}", 3, seed=1), 40):
        for row in np.flatnonzero(timestep.terminated | timestep.truncated):
            even = timestep.reward[row] % 2 == 0
            assert timestep.terminated[row] == even
            assert timestep.truncated[row] != even
            ends[bool(even)] += 1
    assert min(ends.values()) > 0


def test_actions_reach_their_own_environment() -> None:
    environment = make_environment(f"{TOYS}:Walk", 3, seed=1)
    environment.reset()
    timestep = environment.step(np.array([0, 1, 2]))
    np.testing.assert_array_equal(timestep.observation[:, 2], [0, 1, 2])


def test_former_time_steps_of_single_environments_stay() -> None:
    environment = make_environment(f"{TOYS}:Walk", 2, seed=1)
    former = environment.reset().observation
    kept = former.copy()
    environment.step(np.array([1, 1]))
    np.testing.assert_array_equal(former, kept)


def test_actors_with_neighbouring_seeds_share_no_environment() -> None:
    seeds = [seed for first in range(5) for seed in environment_seeds(first, 8)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("CartPolle-v1", "environment CartPolle-v1: .*close names: CartPole-v1"),
        ("CartPole-v9", r"provides versioned environments: \[ `v0`, `v1` \]"),
        ("Nowhere/Thing-v0", "Namespace Nowhere not found"),
        ("gym:CartPolle-v1", "environment gym:CartPolle-v1: .*Did you mean: `CartPole`"),
        ("ALE/Pongg-v5", "environment ALE/Pongg-v5: .*close names: ALE/Pong-v5"),
        ("ALE/Pong", "close names: ALE/Pong-v5"),
        ("no_such_module:Name-v0", "module 'no_such_module' not found"),
    ],
)
def test_unknown_ids_are_refused_with_close_names(env_id: str, message: str) -> None:
    with pytest.raises(EnvironmentFailure, match=message) as caught:
        make_environment(env_id, 2, seed=1)
    assert caught.value.__cause__ is None  # the message says it all: no traceback


@pytest.mark.parametrize(
    ("env_id", "package", "extra"),
    [
        ("ALE/Pong-v5", "ale_py.vector_env", "pip install 'seedbed[atari]'"),
        ("gym:CartPole-v1", "gym", "pip install 'seedbed[gym]'"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, env_id: str, package: str, extra: str
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(EnvironmentFailure) as caught:
        make_environment(env_id, 2, seed=1)
    assert extra in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("TextActions", "action space Text.* is not supported: expected Discrete"),
        ("TextObservations", "observation space Text.* at 'words' is not supported"),
    ],
)
def test_unsupported_spaces_are_refused_by_name(name: str, message: str) -> None:
    with pytest.raises(UnsupportedSpace, match=f"environment {TOYS}:{name}: {message}"):
        make_environment(f"{TOYS}:{name}", 2, seed=1)


def test_what_a_constructor_raises_is_the_cause() -> None:
    with pytest.raises(
        EnvironmentFailure, match=f"environment {TOYS}:NotMade cannot be made: OSError: no simulator"
    ) as caught:
        make_environment(f"{TOYS}:NotMade", 2, seed=1)
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("exits_when_made", "cannot be made: SystemExit: 0"),
        ("exits_in_reset", r"failed in reset\(\): SystemExit: 0"),
        ("exits_in_step", r"failed in step\(\): SystemExit: 0"),
        ("exits_in_close", r"failed in close\(\): SystemExit: 0"),
    ],
)
def test_an_environment_that_ends_its_process_has_failed(name: str, words: str) -> None:
    """Its status would be the actor's: 0, and nobody would hear that there is no actor."""

    def use() -> None:
        with closing(make_environment(f"{TOYS}:{name}", 1, seed=1)) as environment:
            environment.reset()
            environment.step(np.zeros(1, np.int64))

    with pytest.raises(EnvironmentFailure, match=f"environment {TOYS}:{name} {words}"):
        use()


def test_a_module_that_ends_its_process_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("leaves.py").write_text("raise SystemExit(0)")
    with pytest.raises(EnvironmentFailure, match=r"importing leaves.py failed: SystemExit: 0"):
        make_environment("leaves.py:make", 1, seed=1)


def test_warnings_of_the_making_are_logged_without_colours(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "actor"):
        environment = make_environment("CartPole", 2, seed=1)
    assert isinstance(environment._vector, CartPoleVectorEnv)  # type: ignore[attr-defined]
    assert [record.message for record in caplog.records] == [
        "WARN: Using the latest versioned environment `CartPole-v1` instead of the unversioned "
        "environment `CartPole`."
    ]


def test_importing_gym_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    make_environment("gym:CartPole-v1", 1, seed=1)
    assert capfd.readouterr() == ("", "")


def test_a_registered_vector_without_next_step_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    gymnasium.register(
        "SeedbedSameStep-v0",
        entry_point=f"{TOYS}:Walk",
        vector_entry_point=f"{TOYS}:same_step_vector",
    )
    try:
        environment = make_environment("SeedbedSameStep-v0", 2, seed=1)
        assert walk(environment, 10)
    finally:
        del gymnasium.registry["SeedbedSameStep-v0"]


def test_spaces_are_those_of_one_environment() -> None:
    environment = make_environment("CartPole-v1", 5, seed=1)
    assert environment.observation_space.shape == (4,)
    assert environment.action_space == spaces.Discrete(2)
