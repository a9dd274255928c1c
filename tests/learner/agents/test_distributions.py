"""Action distributions against the textbook, and what the environment gets from them."""

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

from learner.agents.distributions import ActionDistribution, make_distribution
from protos.specs import from_spaces
from tests import reference

SEED = tf.constant([3, 7])
ANY = spaces.Discrete(2)


def build(action: spaces.Space[Any]) -> ActionDistribution:
    return make_distribution(from_spaces(ANY, action).action)


def draw_parameters(distribution: ActionDistribution, *leading: int) -> np.ndarray:
    size = distribution.num_outputs + distribution.num_free
    return np.random.default_rng(0).normal(0, 0.7, (*leading, size)).astype(np.float32)


def test_discrete_equals_the_textbook() -> None:
    distribution = build(spaces.Discrete(5))
    logits = draw_parameters(distribution, 2, 3)
    actions = np.array([[0, 1, 4], [2, 3, 0]], np.int32)

    log_prob = distribution.log_prob(logits, actions).numpy()
    entropy = distribution.entropy(logits).numpy()

    for i in np.ndindex(2, 3):
        assert log_prob[i] == pytest.approx(
            reference.categorical_log_prob(logits[i], actions[i]), rel=1e-5
        )
        assert entropy[i] == pytest.approx(reference.categorical_entropy(logits[i]), rel=1e-5)
    np.testing.assert_array_equal(distribution.mode(logits), logits.argmax(-1))


def test_discrete_samples_as_often_as_it_says() -> None:
    distribution = build(spaces.Discrete(4))
    logits = np.array([0.0, 1.0, -1.0, 0.5], np.float32)
    draws = 20_000

    samples = distribution.sample(np.tile(logits, (draws, 1)), SEED).numpy()

    frequency = np.bincount(samples, minlength=4) / draws
    np.testing.assert_allclose(frequency, reference.softmax(logits), atol=0.015)


@pytest.mark.parametrize(
    "action", [spaces.Discrete(4), spaces.MultiDiscrete([2, 3]), spaces.Box(-1, 1, (2,), np.float32)]
)
def test_the_seed_decides_the_sample(action: spaces.Space[Any]) -> None:
    distribution = build(action)
    parameters = draw_parameters(distribution, 50)

    once, again = distribution.sample(parameters, SEED), distribution.sample(parameters, SEED)
    other = distribution.sample(parameters, tf.constant([3, 8]))

    np.testing.assert_array_equal(once, again)
    assert not np.array_equal(once, other)


def test_multi_discrete_is_a_product_of_its_elements() -> None:
    counts = [2, 4, 3]
    distribution = build(spaces.MultiDiscrete(counts))
    parameters = draw_parameters(distribution)
    # As many logits for each element as the largest has categories; the rest of them is unused.
    logits = [parameters.reshape(3, 4)[i, :n] for i, n in enumerate(counts)]

    total = 0.0
    for action in itertools.product(*map(range, counts)):
        found = float(distribution.log_prob(parameters[None], np.array([action], np.int32))[0])
        truth = sum(reference.categorical_log_prob(x, a) for x, a in zip(logits, action, strict=True))
        assert found == pytest.approx(truth, rel=1e-5)
        total += np.exp(found)

    assert total == pytest.approx(1, rel=1e-5)
    entropy = float(distribution.entropy(parameters))
    assert entropy == pytest.approx(sum(map(reference.categorical_entropy, logits)), rel=1e-5)
    np.testing.assert_array_equal(distribution.mode(parameters), [x.argmax() for x in logits])


def test_multi_discrete_never_samples_what_does_not_exist() -> None:
    counts = np.array([[1, 4], [3, 2]])
    distribution = build(spaces.MultiDiscrete(counts))

    samples = distribution.sample(np.zeros((5000, distribution.num_outputs), np.float32), SEED)

    assert samples.shape == (5000, 2, 2)
    np.testing.assert_array_equal(samples.numpy().max(0), counts - 1)


def test_multi_discrete_gives_unused_logits_no_gradient() -> None:
    distribution = build(spaces.MultiDiscrete([2, 3]))
    parameters = tf.constant(draw_parameters(distribution, 1))
    with tf.GradientTape() as tape:
        tape.watch(parameters)
        y = distribution.log_prob(parameters, tf.constant([[1, 2]])) + distribution.entropy(parameters)
    gradient = tape.gradient(y, parameters).numpy()

    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[0] != 0, [True, True, False, True, True, True])


def test_categories_become_the_environment_s_values() -> None:
    discrete = build(spaces.Discrete(3, start=-1))
    multi = build(spaces.MultiDiscrete([3, 200], dtype=np.uint8, start=[5, 50]))

    value = discrete.to_environment(tf.constant([0, 2]))
    values = multi.to_environment(tf.constant([[2, 199]]))

    assert (value.dtype, values.dtype) == (tf.int64, tf.uint8)
    np.testing.assert_array_equal(value, [-1, 1])
    np.testing.assert_array_equal(values, [[7, 249]])


def test_gaussian_equals_the_textbook() -> None:
    distribution = build(spaces.Box(-1, 1, (2, 2), np.float32))
    parameters = draw_parameters(distribution, 3)
    action = np.random.default_rng(1).normal(size=(3, 2, 2)).astype(np.float32)

    log_prob = distribution.log_prob(parameters, action).numpy()
    entropy = distribution.entropy(parameters).numpy()

    for i in range(3):
        mean, std = parameters[i, :4], np.exp(parameters[i, 4:])
        truth = reference.gaussian_log_prob(mean, std, action[i].ravel())
        assert log_prob[i] == pytest.approx(truth, rel=1e-5)
        assert entropy[i] == pytest.approx(reference.gaussian_entropy(std), rel=1e-5)
    np.testing.assert_array_equal(distribution.mode(parameters), parameters[:, :4].reshape(3, 2, 2))


def test_gaussian_samples_have_its_moments() -> None:
    distribution = build(spaces.Box(-1, 1, (2,), np.float32))
    parameters = np.tile(np.array([0.5, -2.0, 0.0, 1.0], np.float32), (20_000, 1))

    samples = distribution.sample(parameters, SEED).numpy()

    np.testing.assert_allclose(samples.mean(0), [0.5, -2.0], atol=0.08)
    np.testing.assert_allclose(samples.std(0), [1.0, np.e], rtol=0.03)


def test_box_actions_are_scaled_to_their_bounds_and_clipped() -> None:
    low, high = np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)
    distribution = build(spaces.Box(low, high))

    values = distribution.to_environment(tf.constant([[0.0, 0.0], [1.0, -1.0], [5.0, -5.0]]))

    np.testing.assert_array_equal(values, [[0, 5], [2, 0], [2, 0]])


@pytest.mark.parametrize("bound", [np.inf, np.finfo(np.float32).max])
def test_box_actions_without_a_bound_are_raw(bound: float) -> None:
    low = np.array([-bound, 0.0, -bound], np.float32)
    high = np.array([bound, bound, 3.0], np.float32)
    distribution = build(spaces.Box(low, high))

    values = distribution.to_environment(tf.constant([[50.0, -1.0, 7.0], [-50.0, 2.5, -7.0]]))

    np.testing.assert_array_equal(values, [[50, 0, 3], [-50, 2.5, -7]])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_box_actions_keep_dtype_and_bounds_for_any_sample(dtype: Any) -> None:
    low, high = np.array([0.1, -0.3], dtype), np.array([0.7, 1e-3], dtype)
    distribution = build(spaces.Box(low, high, dtype=dtype))

    values = distribution.to_environment(tf.constant([[1.0, 1.0], [-1.0, -1.0], [1e9, -1e9]])).numpy()

    assert values.dtype == dtype
    assert (low <= values).all()
    assert (values <= high).all()
