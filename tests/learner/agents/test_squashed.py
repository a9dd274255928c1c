"""The squashed Gaussian against SciPy, at the edges of float32 too."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces
from scipy import integrate, stats

from learner.agents.squashed import SquashedGaussian, is_bounded, log_slope
from protos.specs import ArraySpec, from_spaces
from tests import reference

SEED = tf.constant([3, 7])
ANY = spaces.Discrete(2)
BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))


def action_spec(action: spaces.Space[Any] = BOX) -> ArraySpec:
    return from_spaces(ANY, action).action


def build(action: spaces.Space[Any] = BOX) -> SquashedGaussian:
    return SquashedGaussian(action_spec(action))


def exact(mean: Any, log_std: Any) -> np.ndarray:
    """Parameters float32 [..., 2 A] of these means, and these log standard deviations once limited."""
    upper = _inverse_softplus(np.asarray(log_std, np.float64) + 20) - 20
    raw = 2 - _inverse_softplus(2 - upper)
    return np.concatenate([np.asarray(mean, np.float64), raw], -1).astype(np.float32)


def _inverse_softplus(y: np.ndarray) -> np.ndarray:
    return y + np.log(-np.expm1(-y))


def scipy_log_prob(mean: Any, log_std: Any, u: np.ndarray) -> np.ndarray:
    """Log density of tanh(u) [...], by the change of variables, in float64 and without cancellation."""
    log_slopes = np.log(4) - 2 * np.logaddexp(u, -u)
    return np.sum(stats.norm.logpdf(u, mean, np.exp(log_std)) - log_slopes, -1)


def test_log_prob_equals_scipy() -> None:
    rng = np.random.default_rng(0)
    mean, log_std = rng.normal(0, 2, (50, 2)), rng.uniform(-5, 1.5, (50, 2))
    u = (mean + np.exp(log_std) * rng.normal(0, 2, (50, 2))).astype(np.float32)

    found = build().log_prob(exact(mean, log_std), u)

    # What float32 leaves of a mean, over a small standard deviation.
    np.testing.assert_allclose(found, scipy_log_prob(mean, log_std, u), rtol=1e-4, atol=2e-3)


def test_the_density_is_that_of_the_action_in_its_bounds() -> None:
    """Integrated over the normalised space, and over the environment's, it is 1."""
    distribution = build(spaces.Box(-3, 5, (1,), np.float32))
    parameters = exact([0.4], [-0.3])

    def density(a: float) -> float:
        u = np.array([np.arctanh(a)], np.float32)
        return float(np.exp(distribution.log_prob(parameters, u)))

    total, _ = integrate.quad(density, -1, 1, epsabs=1e-5, limit=200)
    assert total == pytest.approx(1, abs=1e-3)
    assert distribution.log_scale == pytest.approx(np.log(4))
    inside, _ = integrate.quad(
        lambda x: density((x - 1) / 4) / np.exp(distribution.log_scale), -3, 5, epsabs=1e-5, limit=200
    )
    assert inside == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("log_std", [-19.9, -10.0, 0.0, 1.99])
@pytest.mark.parametrize("mean", [0.0, 1e-3, -3.0, 30.0, -1000.0])
def test_a_sample_s_log_prob_is_exact_at_the_edges_of_float32(mean: float, log_std: float) -> None:
    distribution = build(spaces.Box(-1, 1, (1,), np.float32))
    parameters = np.tile(exact([mean], [log_std]), (64, 1))

    u, log_prob = distribution.sample_with_log_prob(parameters, SEED)

    noise = tf.random.stateless_normal([64, 1], SEED).numpy().astype(np.float64)
    truth = scipy_log_prob(mean, log_std, mean + np.exp(log_std) * noise)
    np.testing.assert_allclose(log_prob, truth, rtol=1e-5, atol=1e-4)
    squashed = distribution.squash(u).numpy()
    assert (np.abs(squashed) <= 1).all()


@pytest.mark.parametrize("raw", [-1e6, -50.0, 0.0, 50.0, 1e6])
@pytest.mark.parametrize("mean", [-1e6, -9.5, 0.0, 9.5, 1e6])
def test_gradients_are_finite_for_any_parameters(mean: float, raw: float) -> None:
    distribution = build(spaces.Box(-1, 1, (1,), np.float32))
    parameters = tf.constant(np.tile(np.array([mean, raw], np.float32), (8, 1)))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(parameters)
        u, log_prob = distribution.sample_with_log_prob(parameters, SEED)
        outputs = {
            "action": distribution.squash(u),
            "log_prob": log_prob,
            "entropy": distribution.entropy(parameters),
            "kl": distribution.kl(parameters, tf.stop_gradient(parameters)),
        }
    for name, output in outputs.items():
        assert np.isfinite(output).all(), name
        assert np.isfinite(tape.gradient(output, parameters)).all(), name


def test_a_standard_deviation_outside_its_range_can_come_back() -> None:
    distribution = build(spaces.Box(-1, 1, (1,), np.float32))
    parameters = tf.constant([[0.0, 8.0], [0.0, -24.0]])
    with tf.GradientTape() as tape:
        tape.watch(parameters)
        # Of the normal: the divergence from a standard one.
        y = distribution.kl(parameters, tf.constant(np.tile(exact([0.0], [0.0]), (2, 1))))
    wide, narrow = tape.gradient(y, parameters).numpy()[:, 1]
    assert wide > 0
    assert narrow < 0


def test_a_sample_and_its_log_prob_agree() -> None:
    distribution = build()
    parameters = exact(np.zeros((100, 2)) + 0.3, np.zeros((100, 2)) - 0.5)

    u, log_prob = distribution.sample_with_log_prob(parameters, SEED)

    np.testing.assert_array_equal(u, distribution.sample(parameters, SEED))
    np.testing.assert_allclose(log_prob, distribution.log_prob(parameters, u), atol=1e-4)


def test_a_sample_s_gradient_equals_finite_differences() -> None:
    distribution = build(spaces.Box(-1, 1, (2,), np.float32))
    parameters = np.random.default_rng(1).normal(0, 0.7, (1, 4))
    noise = tf.random.stateless_normal([1, 2], SEED).numpy()

    def loss(x: np.ndarray) -> float:
        action, log_prob = reference.squashed_sample(x, noise)
        return float((log_prob + action.sum(-1)).sum())

    variable = tf.constant(parameters, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        u, log_prob = distribution.sample_with_log_prob(variable, SEED)
        y = tf.reduce_sum(log_prob) + tf.reduce_sum(distribution.squash(u))

    truth = reference.numeric_gradient(loss, parameters, 1e-5)
    np.testing.assert_allclose(tape.gradient(y, variable), truth, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("log_std", [-5.0, -1.0, 0.0, 1.0, 1.9])
@pytest.mark.parametrize("mean", [0.0, 0.7, -3.0])
def test_entropy_equals_numeric_integration(mean: float, log_std: float) -> None:
    found = float(build(spaces.Box(-1, 1, (1,), np.float32)).entropy(exact([mean], [log_std])))

    std = np.exp(log_std)

    def integrand(z: float) -> float:
        u = mean + std * z
        return float(stats.norm.pdf(z) * (np.log(4) - 2 * np.logaddexp(u, -u)))

    log_slopes, _ = integrate.quad(integrand, -12, 12, points=[-mean / std], limit=500)
    assert found == pytest.approx(stats.norm.entropy(0, std) + log_slopes, abs=0.01)


def test_entropy_is_that_of_its_samples() -> None:
    parameters = exact([0.5, -1.0], [0.2, -0.7])
    _, log_prob = build().sample_with_log_prob(np.tile(parameters, (40_000, 1)), SEED)
    assert float(build().entropy(parameters)) == pytest.approx(-np.mean(log_prob), abs=0.03)


def test_kl_is_that_of_the_normal_variables() -> None:
    rng = np.random.default_rng(2)
    means, log_stds = rng.normal(size=(2, 20, 2)), rng.uniform(-3, 1, (2, 20, 2))

    found = build().kl(exact(means[0], log_stds[0]), exact(means[1], log_stds[1]))

    stds = np.exp(log_stds)
    truth = [reference.gaussian_kl(means[0, i], stds[0, i], means[1, i], stds[1, i]) for i in range(20)]
    np.testing.assert_allclose(found, truth, rtol=1e-4, atol=1e-5)


def test_log_slope_is_exact_where_the_tanh_is_1() -> None:
    u = np.array([0.0, 1e-4, 1.0, -1.0, 8.0, 15.0, -40.0, 1e4], np.float32)
    truth = np.log(4) - 2 * np.logaddexp(u.astype(np.float64), -u.astype(np.float64))
    np.testing.assert_allclose(log_slope(tf.constant(u)), truth, rtol=1e-6, atol=1e-7)


def test_actions_fill_their_bounds_and_never_leave_them() -> None:
    distribution = build()
    parameters = np.tile(exact([0.0, 0.0], [1.9, 1.9]), (5000, 1))

    values = distribution.to_environment(distribution.sample(parameters, SEED)).numpy()

    assert (values >= [-2, 0]).all()
    assert (values <= [2, 10]).all()
    np.testing.assert_allclose(values.min(0), [-2, 0], atol=0.01)
    np.testing.assert_allclose(values.max(0), [2, 10], atol=0.01)
    np.testing.assert_allclose(distribution.scaled(np.zeros((1, 2), np.float32)), [[0, 5]])


def test_shapes_are_the_action_s() -> None:
    distribution = build(spaces.Box(-1, 1, (2, 3), np.float64))
    parameters = tf.zeros((4, 5, 12))

    u, log_prob = distribution.sample_with_log_prob(parameters, SEED)

    assert u.shape == distribution.sample(parameters, SEED).shape == (4, 5, 2, 3)
    assert distribution.mode(parameters).shape == (4, 5, 2, 3)
    assert log_prob.shape == distribution.log_prob(parameters, u).shape == (4, 5)
    assert (
        distribution.entropy(parameters).shape == distribution.kl(parameters, parameters).shape == (4, 5)
    )
    assert distribution.to_environment(u).dtype == tf.float64


@pytest.mark.parametrize(
    ("action", "bounded"),
    [
        (BOX, True),
        (spaces.Box(-np.inf, np.inf, (2,), np.float32), False),
        (spaces.Box(np.array([-1, -np.inf], np.float32), np.ones(2, np.float32)), False),
        (spaces.Box(-3e38, 3e38, (1,), np.float32), False),
        (spaces.Discrete(3), False),
    ],
)
def test_bounded_is_what_has_all_its_bounds(action: spaces.Space[Any], bounded: bool) -> None:
    assert is_bounded(action_spec(action)) == bounded
