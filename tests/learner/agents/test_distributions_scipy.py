"""Categorical and Gaussian distributions against SciPy, also where float32 leaves little."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces
from scipy import special, stats

from learner.agents.distributions import ActionDistribution, make_distribution
from protos.specs import from_spaces
from tests import reference

DISCRETE = spaces.Discrete(5)
COUNTS = [2, 4, 3]
MULTI = spaces.MultiDiscrete(COUNTS)
BOX = spaces.Box(-1, 1, (3,), np.float32)


def build(action: spaces.Space[Any]) -> ActionDistribution:
    return make_distribution(from_spaces(spaces.Discrete(2), action).action)


def draw(distribution: ActionDistribution, rows: int, scale: float, seed: int = 0) -> np.ndarray:
    size = distribution.num_outputs + distribution.num_free
    return np.random.default_rng(seed).normal(0, scale, (rows, size)).astype(np.float32)


@pytest.mark.parametrize("scale", [0.1, 3.0, 100.0])
def test_categorical_equals_scipy(scale: float) -> None:
    distribution = build(DISCRETE)
    logits, other = draw(distribution, 40, scale), draw(distribution, 40, scale, seed=1)
    actions = np.random.default_rng(2).integers(0, 5, 40)
    log_p, log_q = (special.log_softmax(x.astype(np.float64), -1) for x in (logits, other))
    p = np.exp(log_p)

    np.testing.assert_allclose(
        distribution.log_prob(logits, actions), log_p[np.arange(40), actions], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
        distribution.entropy(logits), stats.entropy(p, axis=-1), rtol=1e-4, atol=1e-5
    )
    # SciPy's own divergence overflows where a probability is 0 in float64.
    divergence = (p * (log_p - log_q)).sum(-1)
    np.testing.assert_allclose(distribution.kl(logits, other), divergence, rtol=1e-3, atol=1e-5)
    if scale < 10:
        truth = stats.entropy(p, special.softmax(other.astype(np.float64), -1), axis=-1)
        np.testing.assert_allclose(divergence, truth, rtol=1e-6)


def test_multi_discrete_divergence_is_the_sum_of_its_elements() -> None:
    distribution = build(MULTI)
    p, q = draw(distribution, 20, 1.0), draw(distribution, 20, 1.0, seed=1)

    found = distribution.kl(p, q)

    truth = [
        sum(
            reference.categorical_kl(a[:n], b[:n])
            for a, b, n in zip(one.reshape(3, 4), other.reshape(3, 4), COUNTS, strict=True)
        )
        for one, other in zip(p, q, strict=True)
    ]
    np.testing.assert_allclose(found, truth, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("log_std", [-20.0, -3.0, 0.0, 5.0])
def test_gaussian_equals_scipy(log_std: float) -> None:
    distribution = build(BOX)
    rng = np.random.default_rng(0)
    mean = rng.normal(0, 3, (40, 3)).astype(np.float32)
    log_stds = (log_std + rng.uniform(-0.5, 0.5, (40, 3))).astype(np.float32)
    std = np.exp(log_stds.astype(np.float64))
    action = (mean + std * rng.normal(0, 2, (40, 3))).astype(np.float32)
    parameters = np.concatenate([mean, log_stds], -1)

    truth = stats.norm.logpdf(action.astype(np.float64), mean, std).sum(-1)
    np.testing.assert_allclose(distribution.log_prob(parameters, action), truth, rtol=1e-4, atol=1e-4)
    entropy = stats.norm.entropy(mean, std).sum(-1)
    np.testing.assert_allclose(distribution.entropy(parameters), entropy, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shift", [0.0, 1e-3, 1.0])
def test_gaussian_divergence_equals_the_textbook(shift: float) -> None:
    distribution = build(BOX)
    p = draw(distribution, 40, 1.0)
    q = (p + shift * draw(distribution, 40, 1.0, seed=1)).astype(np.float32)
    (p_mean, p_log), (q_mean, q_log) = (np.split(x.astype(np.float64), 2, -1) for x in (p, q))

    found = distribution.kl(p, q)

    truth = [
        reference.gaussian_kl(*row)
        for row in zip(p_mean, np.exp(p_log), q_mean, np.exp(q_log), strict=True)
    ]
    # Small distances to a part in a thousand: they are what a step of learning is measured by.
    np.testing.assert_allclose(found, truth, rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize(("action", "scale"), [(DISCRETE, 1e4), (MULTI, 1e4), (BOX, 5.0)])
def test_gradients_are_finite_for_extreme_parameters(action: spaces.Space[Any], scale: float) -> None:
    distribution = build(action)
    p, q = (tf.constant(draw(distribution, 50, scale, seed)) for seed in (0, 1))
    sampled = distribution.sample(p, tf.constant([1, 2]))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([p, q])
        outputs = {
            "log_prob": distribution.log_prob(p, sampled),
            "entropy": distribution.entropy(p),
            "kl": distribution.kl(p, q),
        }
    for name, output in outputs.items():
        assert np.isfinite(output).all(), name
        assert np.isfinite(tape.gradient(output, p)).all(), name
    assert np.isfinite(tape.gradient(outputs["kl"], q)).all()


@pytest.mark.parametrize("action", [DISCRETE, MULTI, BOX])
def test_the_divergence_from_itself_is_0_and_no_other_is_less(action: spaces.Space[Any]) -> None:
    distribution = build(action)
    p, q = draw(distribution, 200, 1.0), draw(distribution, 200, 1.0, seed=1)
    np.testing.assert_allclose(distribution.kl(p, p), 0, atol=1e-6)
    assert (distribution.kl(p, q).numpy() > 0).all()
