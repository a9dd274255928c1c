"""What holds for every environment that an actor steps, whatever it is made of.

A mixin: subclasses name the environment; `walk` drives it with actions of its own.
"""

import itertools
from typing import Any

import numpy as np

from actor.environments import VectorEnvironment, make_environment
from actor.timestep import TimeStep
from protos import specs, tensors


class EnvironmentContract:
    env_id: str
    num_envs = 3
    steps = 40
    """Enough for an episode of some row to end."""

    def make(self, seed: int = 1) -> VectorEnvironment:
        return make_environment(self.env_id, self.num_envs, seed=seed)

    def test_knows_its_size_and_spaces(self) -> None:
        environment = self.make()
        assert environment.num_envs == self.num_envs
        assert environment.frames_per_second > 0
        spec = specs.from_spaces(environment.observation_space, environment.action_space)
        assert spec.observation
        environment.close()

    def test_first_rows(self) -> None:
        timestep = self.make().reset()
        assert timestep.first.all()
        assert not timestep.terminated.any()
        assert not timestep.truncated.any()
        assert not timestep.reward.any()

    def test_shapes_and_dtypes_are_those_of_the_spec(self) -> None:
        environment = self.make()
        spec = specs.from_spaces(environment.observation_space, environment.action_space)
        flatten = specs.flattener(spec.observation)
        for timestep in walk(environment, self.steps):
            for flags in (timestep.terminated, timestep.truncated, timestep.first):
                assert flags.shape == (self.num_envs,)
                assert flags.dtype == np.bool_
            assert timestep.reward.shape == (self.num_envs,)
            assert timestep.reward.dtype == np.float32
            for leaf, array in zip(spec.observation, flatten(timestep.observation), strict=True):
                assert array.dtype == leaf.dtype
                data = tensors.encode(array, leaf, self.num_envs, leaf.name)
                tensors.decode(data, leaf, self.num_envs, leaf.name)

    def test_a_first_row_follows_a_last_row_and_only_that(self) -> None:
        ended = 0
        timesteps = walk(self.make(), self.steps)
        for former, timestep in itertools.pairwise(timesteps):
            last = former.terminated | former.truncated
            np.testing.assert_array_equal(timestep.first, last)
            assert not timestep.reward[last].any()
            assert not (timestep.first & (timestep.terminated | timestep.truncated)).any()
            ended += int(last.sum())
        assert ended, "no episode ended: this test shows nothing"

    def test_no_row_is_both_terminated_and_truncated(self) -> None:
        for timestep in walk(self.make(), self.steps):
            assert not (timestep.terminated & timestep.truncated).any()

    def test_the_action_of_a_last_row_is_ignored(self) -> None:
        one = walk(self.make(), self.steps, last_row_action=0)
        other = walk(self.make(), self.steps, last_row_action=1)
        assert_equal_streams(one, other)

    def test_the_same_seed_gives_the_same_stream(self) -> None:
        assert_equal_streams(walk(self.make(seed=7), self.steps), walk(self.make(seed=7), self.steps))

    def test_another_seed_gives_another_stream(self) -> None:
        one, other = self.make(seed=7), self.make(seed=8)
        assert not same_streams(walk(one, self.steps), walk(other, self.steps))

    def test_environments_differ(self) -> None:
        timesteps = walk(self.make(), self.steps)
        for row in range(1, self.num_envs):
            pairs = [(leaf[0], leaf[row]) for timestep in timesteps for leaf in leaves(timestep)]
            assert not all(np.array_equal(one, other) for one, other in pairs)


def walk(
    environment: VectorEnvironment, steps: int, last_row_action: int | None = None
) -> list[TimeStep]:
    """The environments' rows under random actions, the same at every call.

    `last_row_action`: 0 or 1, for the lowest or highest action at every last row.
    """
    spec = specs.from_spaces(environment.observation_space, environment.action_space).action
    random = np.random.default_rng(0)
    timesteps = [copied(environment.reset())]
    for _ in range(steps):
        actions = random_actions(random, spec, environment.num_envs)
        last = timesteps[-1].terminated | timesteps[-1].truncated
        if last_row_action is not None:
            actions[last] = spec.minimum if last_row_action == 0 else spec.maximum
        timesteps.append(copied(environment.step(actions)))
    return timesteps


def random_actions(random: np.random.Generator, spec: specs.ArraySpec, rows: int) -> np.ndarray:
    assert spec.minimum is not None
    assert spec.maximum is not None
    shape = (rows, *spec.shape)
    if spec.categorical:
        return random.integers(spec.minimum, spec.maximum + 1, shape).astype(spec.dtype)
    return random.uniform(spec.minimum, spec.maximum, shape).astype(spec.dtype)


def leaves(timestep: TimeStep) -> list[np.ndarray]:
    """All arrays of a time step, the observation's first."""
    return [*_arrays(timestep.observation), *timestep[1:]]


def copied(timestep: TimeStep) -> TimeStep:
    return TimeStep(_copied(timestep.observation), *(array.copy() for array in timestep[1:]))


def same_streams(one: list[TimeStep], other: list[TimeStep]) -> bool:
    return all(
        np.array_equal(left, right)
        for a, b in zip(one, other, strict=True)
        for left, right in zip(leaves(a), leaves(b), strict=True)
    )


def assert_equal_streams(one: list[TimeStep], other: list[TimeStep]) -> None:
    for a, b in zip(one, other, strict=True):
        for left, right in zip(leaves(a), leaves(b), strict=True):
            np.testing.assert_array_equal(left, right)


def _arrays(node: Any) -> list[np.ndarray]:
    if isinstance(node, dict):
        return [array for child in node.values() for array in _arrays(child)]
    if isinstance(node, tuple):
        return [array for child in node for array in _arrays(child)]
    return [node]


def _copied(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _copied(child) for key, child in node.items()}
    if isinstance(node, tuple):
        return tuple(_copied(child) for child in node)
    return node.copy()
