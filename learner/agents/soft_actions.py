"""What differs between Box and Discrete actions in SAC: the rest of the algorithm is one."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from learner.agents.distributions import Categorical
from learner.agents.squashed import SquashedGaussian, is_bounded
from learner.experience.trajectory import Tensor
from protos.errors import ConfigError
from protos.specs import ArraySpec

DISCRETE_TARGET = 0.3
"""Part of log A that the entropy of a policy over A actions is kept at, unless an option says."""

QFunction = Callable[[Tensor], Tensor]
"""From critic inputs [N, ...] to [K, N, outputs]."""


class Expected(NamedTuple):
    """Under the policy, at N observations; differentiable by its parameters."""

    q: Tensor
    """float32 [N]: the least of the critics' Q."""
    log_prob: Tensor
    """float32 [N]: log-probability of its actions; the negative of its entropy."""


class SoftActions(Protocol):
    """Actions as SAC sees them. *Learned* actions are what is recorded, and what critics are asked
    about."""

    num_parameters: int
    """of the policy, for one observation"""
    critic_inputs: int
    """that a critic reads besides the observation"""
    critic_outputs: int
    target_entropy: float
    """nats, unless an option says another"""

    def sample(self, parameters: Tensor, seed: Tensor) -> Tensor:
        """Learned actions [N, ...] of the policy; `seed` is int32 [2]."""
        ...

    def uniform(self, parameters: Tensor, seed: Tensor) -> Tensor:
        """Learned actions [N, ...], all equally likely."""
        ...

    def mode(self, parameters: Tensor) -> Tensor:
        """Learned actions [N, ...]: the policy's best."""
        ...

    def to_environment(self, action: Tensor) -> Tensor:
        """[N, *shape] of the spec's dtype and within its bounds, from learned actions."""
        ...

    def expected(
        self, critics: QFunction, observation: Tensor, parameters: Tensor, seed: Tensor
    ) -> Expected:
        """What the critics expect of the policy at observations [N, size]."""
        ...

    def taken(self, critics: QFunction, observation: Tensor, action: Tensor) -> Tensor:
        """float32 [K, N]: Q of learned actions."""
        ...


def make_soft_actions(spec: ArraySpec) -> SoftActions:
    """For actions of `spec`.

    Raises:
        ConfigError: SAC cannot choose such actions.
    """
    if not spec.categorical:
        if not is_bounded(spec):
            raise ConfigError(
                f"--agent sac squashes actions into their bounds, and found ({spec}), not all of it "
                "bounded: give the Box finite bounds, or choose --agent ppo"
            )
        if (spec.minimum == spec.maximum).any():  # type: ignore[union-attr]  # it is bounded
            raise ConfigError(
                "--agent sac squashes actions into their bounds, which are equal in a part of "
                f"({spec}): leave that part out, or choose --agent ppo"
            )
        return BoxActions(spec)
    if spec.num_elements != 1:
        raise ConfigError(
            f"--agent sac asks its critics about every action, which for ({spec}) are all combinations "
            f"of {spec.num_elements} choices: choose --agent vtrace or --agent ppo"
        )
    return DiscreteActions(spec)


class BoxActions:
    """Haarnoja et al. 2018: learned actions are [N, *shape] in [-1, 1]; critics read them."""

    critic_outputs = 1

    def __init__(self, spec: ArraySpec) -> None:
        self._distribution = SquashedGaussian(spec)
        self._shape = spec.shape
        self.critic_inputs = spec.num_elements
        self.num_parameters = self._distribution.num_outputs
        # The paper, appendix D.
        self.target_entropy = -float(spec.num_elements)

    def sample(self, parameters: Tensor, seed: Tensor) -> Tensor:
        return self._distribution.squash(self._distribution.sample(parameters, seed))

    def uniform(self, parameters: Tensor, seed: Tensor) -> Tensor:
        shape = tf.concat([tf.shape(parameters)[:1], self._shape], 0)
        return tf.random.stateless_uniform(shape, seed, -1.0, 1.0)

    def mode(self, parameters: Tensor) -> Tensor:
        return self._distribution.squash(self._distribution.mode(parameters))

    def to_environment(self, action: Tensor) -> Tensor:
        return self._distribution.scaled(action)

    def expected(
        self, critics: QFunction, observation: Tensor, parameters: Tensor, seed: Tensor
    ) -> Expected:
        """By one sample of each action."""
        action, log_prob = self._distribution.sample_with_log_prob(parameters, seed)
        q = self.taken(critics, observation, self._distribution.squash(action))
        return Expected(tf.reduce_min(q, 0), log_prob)

    def taken(self, critics: QFunction, observation: Tensor, action: Tensor) -> Tensor:
        action = tf.reshape(action, [-1, self.critic_inputs])
        return critics(tf.concat([observation, action], -1))[..., 0]


class DiscreteActions:
    """Christodoulou 2019: learned actions are int32 [N, *shape]; critics answer for each.

    The paper keeps the entropy at 0.98 log A. That is a policy nearly at random wherever several
    actions matter, so easy tasks are never solved by it: `DISCRETE_TARGET` takes the place of 0.98.
    """

    critic_inputs = 0

    def __init__(self, spec: ArraySpec) -> None:
        self._distribution = Categorical(spec)
        self.num_parameters = self.critic_outputs = self._distribution.num_outputs
        self.target_entropy = DISCRETE_TARGET * float(np.log(self.num_parameters))

    def sample(self, parameters: Tensor, seed: Tensor) -> Tensor:
        return self._distribution.sample(parameters, seed)

    def uniform(self, parameters: Tensor, seed: Tensor) -> Tensor:
        return self._distribution.sample(tf.zeros_like(parameters), seed)

    def mode(self, parameters: Tensor) -> Tensor:
        return self._distribution.mode(parameters)

    def to_environment(self, action: Tensor) -> Tensor:
        return self._distribution.to_environment(action)

    def expected(
        self, critics: QFunction, observation: Tensor, parameters: Tensor, seed: Tensor
    ) -> Expected:
        """Exactly, over all actions (equations 10 to 12): nothing is sampled."""
        log_p = tf.nn.log_softmax(parameters)
        p = tf.exp(log_p)
        q = tf.reduce_min(critics(observation), 0)
        return Expected(tf.reduce_sum(p * q, -1), tf.reduce_sum(p * log_p, -1))

    def taken(self, critics: QFunction, observation: Tensor, action: Tensor) -> Tensor:
        hot = tf.one_hot(tf.reshape(action, [-1]), self.critic_outputs)
        return tf.reduce_sum(critics(observation) * hot, -1)
