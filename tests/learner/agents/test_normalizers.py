"""Running moments against NumPy over all that was seen, and what is normalised by them."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

from learner.agent_options import AgentOptions
from learner.agents.normalizers import (
    LIMIT,
    ObservationNormalizer,
    RewardNormalizer,
    RunningMoments,
    scaled_rewards,
)
from protos.errors import ConfigError
from tests.learner.agents import samples

MIXED = spaces.Dict(
    {
        "camera": samples.IMAGE,
        "gear": spaces.Discrete(3),
        "place": spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
        "speed": spaces.Box(-1, 1, (3,), np.float32),
    }
)


@pytest.mark.parametrize("mean", [0.0, 1000.0])
def test_moments_equal_those_of_everything_seen(mean: float) -> None:
    rng = np.random.default_rng(0)
    batches = [rng.normal(mean, [1.0, 0.1, 20.0], (n, 2, 3)).astype(np.float32) for n in (1, 7, 30, 2)]
    moments = RunningMoments((3,), "test")

    for batch in batches:
        moments.update(tf.constant(batch))

    everything = np.concatenate(batches).reshape(-1, 3).astype(np.float64)
    assert float(moments.count) == len(everything)
    np.testing.assert_allclose(moments.mean, everything.mean(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(moments.variance, everything.var(0), rtol=1e-3)


def test_moments_begin_as_0_and_1_which_count_for_nothing() -> None:
    moments = RunningMoments((), "test")
    assert (float(moments.mean), float(moments.variance)) == (0, 1)

    moments.update(tf.constant([3.0, 5.0]))

    assert (float(moments.mean), float(moments.variance)) == (4, 1)


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
def test_moments_leave_out_what_is_not_finite(poison: float) -> None:
    moments = RunningMoments((2,), "test")
    moments.update(tf.constant([[1.0, 2.0], [3.0, 6.0]]))
    before = [v.numpy() for v in moments.variables.values()]

    moments.update(tf.constant([[1.0, poison]]))

    for old, new in zip(before, moments.variables.values(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_observations_of_floats_are_normalised_and_others_are_not() -> None:
    leaves = samples.spec(MIXED).observation
    rng = np.random.default_rng(1)
    arrays = [samples.draw_leaf(leaf, (40, 5), rng) for leaf in leaves]
    floats = [i for i, leaf in enumerate(leaves) if leaf.dtype.kind == "f"]
    assert len(floats) == 2
    for i in floats:
        arrays[i] = arrays[i] * 3 + 7
    normalizer = ObservationNormalizer(leaves)

    normalizer.update([tf.constant(a) for a in arrays])
    found = normalizer([tf.constant(a) for a in arrays])

    for i, (array, leaf) in enumerate(zip(arrays, found, strict=True)):
        truth = array
        if i in floats:
            truth = (array - array.mean((0, 1))) / array.std((0, 1))
            assert leaf.dtype == tf.float32
        np.testing.assert_allclose(leaf, truth, rtol=1e-4, atol=1e-4)


def test_observations_are_clipped() -> None:
    normalizer = ObservationNormalizer(samples.spec().observation)
    normalizer.update([tf.constant(np.random.default_rng(0).normal(size=(50, 4)), tf.float32)])

    (found,) = normalizer([tf.constant([[1e6, -1e6, 0.0, 1e30]])])

    np.testing.assert_allclose(found[0], [LIMIT, -LIMIT, found[0, 2], LIMIT])


def test_observations_without_floats_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--normalize-observations .* floats, but .*uint8.*leave it"):
        ObservationNormalizer(samples.spec(samples.IMAGE).observation)


def test_rewards_are_divided_by_the_deviation_of_returns_and_clipped() -> None:
    returns = np.random.default_rng(2).normal(50, 4, (20, 3)).astype(np.float32)
    normalizer = RewardNormalizer()

    normalizer.update(tf.constant(returns))

    rewards = np.array([[1.0, -8.0, 0.0, 1000.0]], np.float32)
    truth = np.clip(rewards / returns.std(), -LIMIT, LIMIT)
    np.testing.assert_allclose(normalizer(tf.constant(rewards)), truth, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [-16.0, 0.0, 2.0]),
        ({"reward_shift": 8.0, "reward_scale": 0.125}, [-1.0, 1.0, 1.25]),
        ({"reward_shift": 8.0, "reward_scale": 0.125, "reward_clip": 1.0}, [-1.0, 1.0, 1.0]),
        ({"reward_clip": 1.0}, [-1.0, 0.0, 1.0]),
    ],
)
def test_fixed_changes_of_rewards_come_in_their_order(
    options: dict[str, Any], expected: list[float]
) -> None:
    found = scaled_rewards(AgentOptions(**options), tf.constant([-16.0, 0.0, 2.0]))

    np.testing.assert_allclose(found, expected)
