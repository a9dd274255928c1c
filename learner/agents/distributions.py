"""Distributions over actions, built from the action's spec.

A distribution is a set of pure functions of its `parameters` [..., num_parameters], which a policy
head computes. Two forms of an action occur. The *sampled* action is what learning needs (recorded at
acting, given back to `log_prob`); `to_environment` turns it into what the environment gets.
"""

import math
from typing import Any, Literal, Protocol

import numpy as np
import tensorflow as tf

from learner.agents.shapes import reshaped, with_leading_of
from learner.experience.trajectory import Tensor
from protos.errors import ConfigError
from protos.options import flag
from protos.specs import ArraySpec

Mean = Literal["linear", "tanh"]
Std = Literal["free", "softplus"]

UNBOUNDED = 1e6
"""Bounds of a Box at or beyond this say "no bound", like the largest float32 that many old
environments give."""

SMALLEST_STD = 1e-4
"""Least standard deviation by softplus: without it the density has no upper bound."""

_IMPOSSIBLE = -1e9
"""Logit of a category that does not exist. Finite, so that 0 probability times it is 0."""


class ActionDistribution(Protocol):
    """What every distribution offers. `...` stands for any leading dimensions."""

    @property
    def num_outputs(self) -> int:
        """How many parameters the policy head computes from the observation."""
        ...

    @property
    def num_free(self) -> int:
        """How many more are variables of their own, the same for every observation, first 0."""
        ...

    def sample(self, parameters: Tensor, seed: Tensor) -> Tensor:
        """Sampled actions [..., *shape]; `seed` is int32 [2], and the same seed samples the same."""
        ...

    def mode(self, parameters: Tensor) -> Tensor:
        """The most likely sampled action [..., *shape]."""
        ...

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        """float32 [...]: log-probability (or density) of the sampled `action` [..., *shape]."""
        ...

    def entropy(self, parameters: Tensor) -> Tensor:
        """float32 [...], in nats."""
        ...

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        """float32 [...]: KL(p || q) in nats, at least 0, of two distributions by their parameters."""
        ...

    def to_environment(self, action: Tensor) -> Tensor:
        """[..., *shape] of the spec's dtype and within its bounds."""
        ...


def make_distribution(
    spec: ArraySpec, *, mean: Mean = "linear", std: Std = "free"
) -> ActionDistribution:
    """The distribution for actions of `spec`: categorical, or a diagonal Gaussian for a Box.

    Raises:
        ConfigError: `mean` or `std` says of a Box what the action is none of.
    """
    if not spec.categorical:
        return DiagonalGaussian(spec, mean=mean, std=std)
    for name, value, default in (("mean", mean, "linear"), ("std", std, "free")):
        if value != default:
            raise ConfigError(
                f"{flag(f'policy_{name}')} {value} is of Box actions, but the action is ({spec}): leave "
                "it out"
            )
    return Categorical(spec)


class Categorical:
    """Independent categories for each element: Discrete is one element, MultiDiscrete several.

    Sampled actions are int32 indices from 0 (the environment's value less the spec's minimum).
    Parameters are logits, [element, category] flattened; elements with fewer categories than the
    largest leave the rest of theirs unused.
    """

    num_free = 0

    def __init__(self, spec: ArraySpec) -> None:
        assert spec.minimum is not None
        counts = spec.num_categories.reshape(-1)
        self._spec = spec
        self._elements, self._categories = len(counts), int(counts.max())
        self._minimum = spec.minimum.astype(np.int64)
        exists = np.arange(self._categories) < counts[:, None]
        self._exists = None if exists.all() else exists
        # A dimension of one element would cost acting, and do nothing.
        self._logits_shape: tuple[int, ...] = (self._categories,)
        if self._elements > 1:
            self._logits_shape = (self._elements, self._categories)
        self._axes = [-1, -2][: len(self._logits_shape)]

    @property
    def num_outputs(self) -> int:
        return self._elements * self._categories

    def sample(self, parameters: Tensor, seed: Tensor) -> Tensor:
        logits = self._logits(parameters)
        # The Gumbel-max trick. The smallest uniform number is above 0, else an existing category
        # might get minus infinity and lose to one that does not exist.
        tiny = np.finfo(np.float32).tiny
        uniform = tf.random.stateless_uniform(tf.shape(logits), seed, minval=tiny)
        return self._best(logits - tf.math.log(-tf.math.log(uniform)), parameters)

    def mode(self, parameters: Tensor) -> Tensor:
        return self._best(self._logits(parameters), parameters)

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        # As a matrix: of any other rank, TensorFlow compares the shapes at each call.
        logits = reshaped(self._logits(parameters), [-1, self._categories])
        labels = reshaped(action, [-1])
        cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        if self._elements == 1:
            return -with_leading_of(parameters, cross_entropy, ())
        return -tf.reduce_sum(with_leading_of(parameters, cross_entropy, (self._elements,)), -1)

    def entropy(self, parameters: Tensor) -> Tensor:
        log_p = tf.nn.log_softmax(self._logits(parameters))
        return -tf.reduce_sum(tf.exp(log_p) * log_p, self._axes)

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        log_p, log_q = (tf.nn.log_softmax(self._logits(x)) for x in (p, q))
        return tf.reduce_sum(tf.exp(log_p) * (log_p - log_q), self._axes)

    def to_environment(self, action: Tensor) -> Tensor:
        return tf.cast(tf.cast(action, tf.int64) + self._minimum, self._spec.dtype)

    def _logits(self, parameters: Tensor) -> Tensor:
        """[..., element, category], or [..., category] of a single element."""
        logits = with_leading_of(parameters, parameters, self._logits_shape)
        return logits if self._exists is None else tf.where(self._exists, logits, _IMPOSSIBLE)

    def _best(self, logits: Tensor, parameters: Tensor) -> Tensor:
        """Sampled actions [..., *shape]: in each element, the category of the highest logit."""
        index = tf.argmax(logits, -1, tf.int32)
        return with_leading_of(parameters, index, self._spec.shape)


class DiagonalGaussian:
    """Independent normal variables for a Box of floats.

    Their standard deviation is free (it does not depend on the observation, as PPO has it, and starts
    at 1), or the softplus of the network's output (as Mnih et al. 2016 have it, section 9). Their mean
    is the network's output, or its tanh, which no action's bound cuts off.

    Sampled actions are float32 in a normalised space: -1 and 1 stand for the bounds of an element
    that has both, and for themselves where a bound is missing (infinite, or beyond `UNBOUNDED`). They
    are recorded as sampled; only what the environment gets is clipped to its bounds, so that the
    log-probability stays that of the normal distribution. Parameters: means before the tanh, then
    log standard deviations, or what the softplus is of.
    """

    def __init__(self, spec: ArraySpec, *, mean: Mean = "linear", std: Std = "free") -> None:
        self._bounded_mean, self._softplus = mean == "tanh", std == "softplus"
        assert spec.minimum is not None
        assert spec.maximum is not None
        self._spec = spec
        low, high = (bound.astype(np.float64) for bound in (spec.minimum, spec.maximum))
        bounded = (np.abs(low) < UNBOUNDED) & (np.abs(high) < UNBOUNDED)
        low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
        self._centre = ((low + high) / 2).astype(np.float32)
        self._scale = ((high - low) / 2).astype(np.float32)

    @property
    def num_outputs(self) -> int:
        return self._spec.num_elements * (2 if self._softplus else 1)

    @property
    def num_free(self) -> int:
        return 0 if self._softplus else self._spec.num_elements

    def sample(self, parameters: Tensor, seed: Tensor) -> Tensor:
        mean, log_std = self._split(parameters)
        noise = tf.random.stateless_normal(tf.shape(mean), seed)
        return self.shaped(mean + tf.exp(log_std) * noise)

    def mode(self, parameters: Tensor) -> Tensor:
        return self.shaped(self._split(parameters)[0])

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        mean, log_std = self._split(parameters)
        flat = with_leading_of(mean, action, (self._spec.num_elements,))
        z = (flat - mean) * tf.exp(-log_std)
        return -tf.reduce_sum(0.5 * tf.square(z) + log_std + 0.5 * math.log(2 * math.pi), -1)

    def entropy(self, parameters: Tensor) -> Tensor:
        _, log_std = self._split(parameters)
        return tf.reduce_sum(log_std + 0.5 * math.log(2 * math.pi * math.e), -1)

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        (p_mean, p_log_std), (q_mean, q_log_std) = self._split(p), self._split(q)
        z = (p_mean - q_mean) * tf.exp(-q_log_std)
        # Of the ratio's logarithm: the textbook's difference of variances loses small distances, which
        # are those that matter, to rounding.
        log_ratio = 2.0 * (p_log_std - q_log_std)
        return 0.5 * tf.reduce_sum(tf.square(z) + tf.math.expm1(log_ratio) - log_ratio, -1)

    def to_environment(self, action: Tensor) -> Tensor:
        value = tf.cast(self._centre + self._scale * action, self._spec.dtype)
        # Clipped in the spec's own dtype: rounding must not step over a bound.
        return tf.clip_by_value(value, self._spec.minimum, self._spec.maximum)

    def _split(self, parameters: Tensor) -> Any:
        """Means and log standard deviations, [..., element] each."""
        mean, spread = tf.split(parameters, 2, -1)
        if self._bounded_mean:
            mean = tf.tanh(mean)
        if self._softplus:
            spread = tf.math.log(tf.math.softplus(spread) + SMALLEST_STD)
        return mean, spread

    def shaped(self, action: Tensor) -> Tensor:
        """[..., element] as [..., *shape]."""
        return with_leading_of(action, action, self._spec.shape)
