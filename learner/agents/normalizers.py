"""Running mean and variance, and what they normalise: observations and rewards.

The moments are variables of the learner. Those of observations belong to the policy, so that
checkpoints hold them, acting uses them, and an exported policy contains them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from learner.agent_options import AgentOptions
from learner.experience.trajectory import Tensor
from learner.group import ALONE, Learners
from protos.errors import ConfigError
from protos.specs import ArraySpec

LIMIT = 10.0
"""Normalised values are clipped to [-LIMIT, LIMIT]: one freak must not move all weights."""

EPSILON = 1e-8
"""Added to variances: what never changes is divided by something."""


class RunningMoments:
    """Mean and variance, element by element, of everything seen so far: 0 and 1 before that.

    Batches are merged by the parallel algorithm (Chan, Golub and LeVeque 1979, equation 2.1), which
    does not lose small variances beside large means as a sum of squares does.

    Args:
        shape: of one sample.
        name: of the variables.
    """

    def __init__(self, shape: Sequence[int], name: str) -> None:
        def variable(part: str, value: np.ndarray) -> Any:
            return tf.Variable(value, dtype=tf.float32, trainable=False, name=f"{name}_{part}")

        self.count = variable("count", np.zeros(()))
        self.mean = variable("mean", np.zeros(shape))
        self.variance = variable("variance", np.ones(shape))

    @property
    def variables(self) -> dict[str, Any]:
        """tf.Variable by stable name."""
        return {"count": self.count, "mean": self.mean, "variance": self.variance}

    def update(self, samples: Tensor, learners: Learners = ALONE) -> None:
        """Take in samples, float32 [..., *shape] with at least one leading dimension; and as many of
        each other learner.

        A batch with a number that is not finite, or whose square is not, is left out whole: it would be
        remembered for ever.
        """
        samples = tf.reshape(samples, [-1, *self.mean.shape])
        n = tf.cast(tf.shape(samples)[0] * learners.size, tf.float32)
        mean, variance = _moments(samples, learners)
        total = self.count + n
        delta = mean - self.mean
        # At count 0 the initial variance of 1 counts for nothing.
        spread = self.variance * self.count + variance * n + tf.square(delta) * self.count * n / total
        mean = self.mean + delta * n / total
        # Of the results: a large finite sample has an infinite square.
        finite = tf.reduce_all(tf.math.is_finite(mean) & tf.math.is_finite(spread))
        self.variance.assign(tf.where(finite, spread / total, self.variance))
        self.mean.assign(tf.where(finite, mean, self.mean))
        self.count.assign(tf.where(finite, total, self.count))


class ObservationNormalizer:
    """The float arrays of an observation with mean 0 and variance 1; the others as they are.

    Args:
        leaves: the observation spec.

    Raises:
        ConfigError: no array of the observation is of floats.
    """

    def __init__(self, leaves: Sequence[ArraySpec]) -> None:
        self._moments = {
            i: RunningMoments(leaf.shape, f"observation_{i}")
            for i, leaf in enumerate(leaves)
            if leaf.dtype.kind == "f"
        }
        if not self._moments:
            raise ConfigError(
                "--normalize-observations normalises arrays of floats, but the observation is "
                f"({'; '.join(map(str, leaves))}): leave it out"
            )

    @property
    def variables(self) -> dict[str, Any]:
        """tf.Variable by stable name."""
        return {
            f"leaf_{i}/{name}": variable
            for i, moments in self._moments.items()
            for name, variable in moments.variables.items()
        }

    def __call__(self, observation: Sequence[Tensor]) -> list[Tensor]:
        """The leaves [..., *shape], those of floats as float32 within [-LIMIT, LIMIT]."""
        leaves = list(observation)
        for i, moments in self._moments.items():
            x = tf.cast(leaves[i], tf.float32) - moments.mean
            x *= tf.math.rsqrt(moments.variance + EPSILON)
            leaves[i] = tf.clip_by_value(x, -LIMIT, LIMIT)
        return leaves

    def update(self, observation: Sequence[Tensor], learners: Learners = ALONE) -> None:
        """Take in what has been seen, by this learner and the others: [..., *shape] for each leaf."""
        for i, moments in self._moments.items():
            moments.update(tf.cast(observation[i], tf.float32), learners)


class RewardNormalizer:
    """Rewards divided by the running standard deviation of discounted returns.

    The return is that of the past, G_t = gamma G_{t-1} + r_t with G = 0 at an episode's first row: it
    is known at the moment, and its scale is that of the values to learn (Engstrom et al. 2020,
    "Implementation Matters", section 3). The sign of a reward stays, for no mean is subtracted.
    """

    def __init__(self) -> None:
        self._moments = RunningMoments((), "return")

    @property
    def variables(self) -> dict[str, Any]:
        """tf.Variable by stable name."""
        return self._moments.variables

    def __call__(self, rewards: Tensor) -> Tensor:
        """The rewards, of any shape, within [-LIMIT, LIMIT]."""
        scale = tf.math.rsqrt(self._moments.variance + EPSILON)
        return tf.clip_by_value(rewards * scale, -LIMIT, LIMIT)

    def update(self, returns: Tensor, learners: Learners = ALONE) -> None:
        """Take in discounted returns, float32 [...], and those of other learners."""
        self._moments.update(returns, learners)


def _moments(samples: Tensor, learners: Learners) -> tuple[Tensor, Tensor]:
    """Mean and variance [*shape] of samples [n, *shape] of every learner."""
    own_mean, own_variance = tf.nn.moments(samples, 0)
    if learners.size == 1:
        return own_mean, own_variance
    (mean,) = learners.mean([own_mean])
    (variance,) = learners.mean([own_variance + tf.square(own_mean - mean)])
    return mean, variance


def scaled_rewards(options: AgentOptions, rewards: Tensor) -> Tensor:
    """Rewards as options that do not change say: shifted, then scaled, then clipped."""
    rewards = (rewards + options.reward_shift) * options.reward_scale
    limit = options.reward_clip
    return tf.clip_by_value(rewards, -limit, limit) if limit else rewards
