"""Box and Discrete actions as SAC sees them."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

from learner.agents.soft_actions import SoftActions, make_soft_actions
from protos.errors import ConfigError
from protos.specs import from_spaces
from tests import reference

SEED = tf.constant([3, 7])
BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))


def build(action: spaces.Space[Any]) -> SoftActions:
    return make_soft_actions(from_spaces(spaces.Discrete(2), action).action)


def linear_critics(x: Any) -> Any:
    """Two critics: 1 and 2 times the sum of what they read."""
    total = tf.reduce_sum(x, -1, keepdims=True)
    return tf.stack([total, 2 * total])


def test_a_box_s_critics_read_observation_and_action() -> None:
    actions = build(BOX)
    observation = np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]], np.float32)
    action = np.array([[0.5, -0.25], [1.0, 1.0]], np.float32)
    assert (actions.critic_inputs, actions.critic_outputs) == (2, 1)

    q = actions.taken(linear_critics, tf.constant(observation), tf.constant(action))

    np.testing.assert_allclose(q, [[6.25, 2], [12.5, 4]])


def test_a_box_s_expectation_is_one_sample_s() -> None:
    actions = build(BOX)
    observation = tf.constant([[-5.0], [5.0]])
    parameters = np.array([[0.1, 0.2, -1, -2], [0.5, -0.5, 0, 0.3]], np.float32)

    found = actions.expected(linear_critics, observation, tf.constant(parameters), SEED)

    noise = tf.random.stateless_normal([2, 2], SEED).numpy()
    action, log_prob = reference.squashed_sample(parameters.astype(np.float64), noise)
    np.testing.assert_allclose(found.log_prob, log_prob, rtol=1e-4, atol=1e-4)
    # The lesser of the twins: of a negative sum it is the second.
    totals = action.sum(-1) + np.array([-5, 5])
    np.testing.assert_allclose(found.q, [2 * totals[0], totals[1]], rtol=1e-4)


def test_discrete_critics_answer_for_every_action() -> None:
    actions = build(spaces.Discrete(3, start=5))
    assert (actions.critic_inputs, actions.critic_outputs) == (0, 3)
    q = tf.constant([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], [[-1.0, -2.0, -3.0], [7.0, 8.0, 9.0]]])

    found = actions.taken(lambda x: q, tf.zeros((2, 1)), tf.constant([2, 0]))

    np.testing.assert_array_equal(found, [[3, 4], [-3, 7]])


def test_a_discrete_expectation_is_over_all_actions() -> None:
    actions = build(spaces.Discrete(3))
    rng = np.random.default_rng(0)
    q, logits = rng.normal(size=(2, 4, 3)).astype(np.float32), rng.normal(size=(4, 3))

    found = actions.expected(lambda x: q, tf.zeros((4, 1)), tf.constant(logits, tf.float32), SEED)

    p = reference.softmax(logits)
    np.testing.assert_allclose(found.q, (p * q.min(0)).sum(-1), rtol=1e-5)
    truth = [-reference.categorical_entropy(row) for row in logits]
    np.testing.assert_allclose(found.log_prob, truth, rtol=1e-5)


@pytest.mark.parametrize("action", [BOX, spaces.Discrete(5, start=-2)])
def test_uniform_actions_are_everywhere_alike(action: spaces.Space[Any]) -> None:
    actions = build(action)
    # Parameters of a policy that is sure of itself: they do not matter.
    parameters = tf.tile([[50.0] + [0.0] * (actions.num_parameters - 1)], [20_000, 1])

    learned = actions.uniform(parameters, SEED)
    values = actions.to_environment(learned).numpy()

    if isinstance(action, spaces.Box):
        for i, (low, high) in enumerate(zip(action.low, action.high, strict=True)):
            counts, _ = np.histogram(values[:, i], 10, (low, high))
            np.testing.assert_allclose(counts / 20_000, 0.1, atol=0.01)
    else:
        np.testing.assert_allclose(np.bincount(values + 2) / 20_000, 0.2, atol=0.015)


def test_the_mode_of_a_box_is_its_squashed_mean() -> None:
    actions = build(BOX)
    parameters = tf.constant([[0.5, -3.0, 1.0, 1.0]])
    np.testing.assert_allclose(actions.mode(parameters), np.tanh([[0.5, -3.0]]), rtol=1e-6)
    np.testing.assert_allclose(
        actions.to_environment(actions.mode(parameters)),
        [[2 * np.tanh(0.5), 5 - 5 * np.tanh(3)]],
        rtol=1e-4,
    )


@pytest.mark.parametrize(
    ("action", "entropy"),
    [(BOX, -2.0), (spaces.Box(-1, 1, (2, 3), np.float32), -6.0), (spaces.Discrete(4), 0.3 * np.log(4))],
)
def test_the_target_entropy(action: spaces.Space[Any], entropy: float) -> None:
    assert build(action).target_entropy == pytest.approx(entropy)


def test_what_sac_cannot_choose_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"all combinations of 2 choices: choose --agent"):
        build(spaces.MultiDiscrete([2, 3]))
    with pytest.raises(ConfigError, match=r"not all of it bounded: give the Box finite bounds"):
        build(spaces.Box(-np.inf, np.inf, (1,), np.float32))
    with pytest.raises(
        ConfigError, match=r"equal in a part of \(float32\[2\] in .*: leave that part out"
    ):
        build(spaces.Box(np.float32([-1, 3]), np.float32([1, 3])))
