"""A stochastic policy and a value function on one network: what V-trace, A2C and PPO act with."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from learner.agents.distributions import make_distribution
from learner.agents.layers import Variables, prefixed
from learner.agents.networks import Network, PolicyHead, ValueHead
from learner.config import AgentOptions
from learner.experience.trajectory import ActInputs, ActOutputs, Batch, State, Tensor
from protos.specs import EnvironmentSpec


class Evaluation(NamedTuple):
    """What the present weights say about every row of a batch."""

    parameters: Tensor
    """float32 [T+1, B, parameters] of the action distribution."""
    values: Tensor
    """float32 [T+1, B]: V(x)."""


class ActorCriticPolicy:
    """Implements `Policy`. Records "action" (as sampled), "log_prob" and "value".

    Args:
        spec: of the environments to act in.
        options: the network.
        seed: decides the initial weights; the same seed gives the same.

    Raises:
        ConfigError: the options do not fit the observation.
    """

    def __init__(self, spec: EnvironmentSpec, options: AgentOptions, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.distribution = make_distribution(spec.action)
        self._network = Network(spec.observation, options, rng, heads=2)
        features = self._network.features
        self._policy_head = PolicyHead(features, self.distribution, rng)
        self._value_head = ValueHead(features, rng)
        self.trainable: Variables = (
            prefixed("network", self._network.variables)
            | prefixed("policy_head", self._policy_head.variables)
            | prefixed("value_head", self._value_head.variables)
        )

    @property
    def state_specs(self) -> Mapping[str, Any]:
        return self._network.state_specs

    @property
    def variables(self) -> list[Any]:
        return [variable.value for variable in self.trainable.values()]

    def act(
        self, inputs: ActInputs, state: State, *, seed: Tensor, greedy: bool
    ) -> tuple[ActOutputs, State]:
        (for_policy, for_value), state = self._network.step(inputs.observation, state)
        parameters = self._policy_head(for_policy)
        if greedy:
            action = self.distribution.mode(parameters)
        else:
            action = self.distribution.sample(parameters, seed)
        record = {
            "action": action,
            "log_prob": self.distribution.log_prob(parameters, action),
            "value": self._value_head(for_value),
        }
        return ActOutputs(self.distribution.to_environment(action), record), state

    def evaluate(self, batch: Batch) -> Evaluation:
        """Parameters and values of all rows, as the present weights have them."""
        features, _ = self._network.unroll(batch.observation, batch.first, batch.initial_state)
        for_policy, for_value = (tf.reshape(x, [-1, x.shape[2]]) for x in features)
        parameters = self._policy_head(for_policy)
        length = batch.first.shape[0]
        return Evaluation(
            tf.reshape(parameters, [length, -1, parameters.shape[1]]),
            tf.reshape(self._value_head(for_value), [length, -1]),
        )
