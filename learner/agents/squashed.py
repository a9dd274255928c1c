"""The tanh of a diagonal Gaussian: actions that lie within their bounds, with an exact density."""

import math

import numpy as np
import tensorflow as tf

from learner.agents.distributions import UNBOUNDED, DiagonalGaussian
from learner.experience.trajectory import Tensor
from protos.specs import ArraySpec

LOG_STD_RANGE = (-20.0, 2.0)
"""Of the normal variables, as in Haarnoja et al. 2018 (their code)."""

QUADRATURE_POINTS = 128


def is_bounded(spec: ArraySpec) -> bool:
    """Whether every element of the Box has both its bounds."""
    if spec.categorical or spec.minimum is None or spec.maximum is None:
        return False
    bounds = np.stack([spec.minimum, spec.maximum]).astype(np.float64)
    return bool((np.abs(bounds) < UNBOUNDED).all())


class SquashedGaussian:
    """tanh(u) scaled to the bounds of a Box, u normal with independent elements (Haarnoja et al. 2018,
    appendix C). Mean and standard deviation both depend on the observation.

    The *sampled* action is u, from which everything else is had without rounding: tanh(u) cannot be
    taken back once it has become 1. Densities are those of tanh(u), in the space where -1 and 1 stand
    for the bounds; that of the environment's action is lower by `log_scale`. Parameters: means, then
    what becomes the log standard deviations, softly limited to `LOG_STD_RANGE` (a hard limit would
    have no gradient that leads back).

    Args:
        spec: a Box of floats for which `is_bounded`.
    """

    num_free = 0

    def __init__(self, spec: ArraySpec) -> None:
        assert spec.minimum is not None
        assert spec.maximum is not None
        self._normal = DiagonalGaussian(spec)
        self.num_elements = spec.num_elements
        extent = spec.maximum.astype(np.float64) - spec.minimum.astype(np.float64)
        self.log_scale = float(np.log(extent / 2).sum())
        """Log-determinant of the scaling from [-1, 1] to the bounds."""

    @property
    def num_outputs(self) -> int:
        return 2 * self.num_elements

    def sample(self, parameters: Tensor, seed: Tensor) -> Tensor:
        return self._normal.sample(_limited(parameters), seed)

    def sample_with_log_prob(self, parameters: Tensor, seed: Tensor) -> tuple[Tensor, Tensor]:
        """A sample that is differentiable by the parameters, and its log-probability.

        Of the noise itself: the difference of sample and mean is rounded, and a small standard
        deviation would make much of that.

        Returns:
            u [..., *shape], and float32 [...].
        """
        mean, log_std = tf.split(_limited(parameters), 2, -1)
        noise = tf.random.stateless_normal(tf.shape(mean), seed)
        flat = mean + tf.exp(log_std) * noise
        log_density = -0.5 * tf.square(noise) - log_std - 0.5 * math.log(2 * math.pi)
        log_prob = tf.reduce_sum(log_density - log_slope(flat), -1)
        return self._normal.shaped(flat), log_prob

    def mode(self, parameters: Tensor) -> Tensor:
        """The most likely u; what it is squashed to is the median, and what SAC acts by greedily."""
        return self._normal.mode(parameters)

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        flat = tf.reshape(action, [*tf.unstack(tf.shape(parameters))[:-1], self.num_elements])
        return self._normal.log_prob(_limited(parameters), action) - tf.reduce_sum(log_slope(flat), -1)

    def entropy(self, parameters: Tensor) -> Tensor:
        """float32 [...], in nats: the normal's, plus the mean of the log-determinant, which has no
        closed form, by Gauss-Hermite quadrature (within 0.01 nats an element)."""
        parameters = _limited(parameters)
        mean, log_std = tf.split(parameters, 2, -1)
        points, weights = np.polynomial.hermite_e.hermegauss(QUADRATURE_POINTS)
        u = mean[..., None] + tf.exp(log_std)[..., None] * points.astype(np.float32)
        weights = (weights / weights.sum()).astype(np.float32)
        return self._normal.entropy(parameters) + tf.reduce_sum(log_slope(u) * weights, (-2, -1))

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        # What both are mapped by, one to one, leaves the divergence as it is.
        return self._normal.kl(_limited(p), _limited(q))

    def squash(self, action: Tensor) -> Tensor:
        """tanh(u): the sampled action in [-1, 1]."""
        return tf.tanh(action)

    def to_environment(self, action: Tensor) -> Tensor:
        return self.scaled(self.squash(action))

    def scaled(self, squashed: Tensor) -> Tensor:
        """What the environment gets of an action in [-1, 1]: of the spec's dtype, within its bounds."""
        return self._normal.to_environment(squashed)


def log_slope(u: Tensor) -> Tensor:
    """log(1 - tanh(u)^2), the log of tanh's derivative, for any u: 1 - tanh^2 itself is 0 beyond 9."""
    distance = tf.abs(u)
    return 2.0 * (math.log(2.0) - distance - tf.nn.softplus(-2.0 * distance))


def _limited(parameters: Tensor) -> Tensor:
    """Means, and log standard deviations in their range: unchanged amid it, bent at its ends."""
    mean, log_std = tf.split(parameters, 2, -1)
    low, high = LOG_STD_RANGE
    log_std = high - tf.nn.softplus(high - log_std)
    log_std = low + tf.nn.softplus(log_std - low)
    return tf.concat([mean, log_std], -1)
