"""Q functions of discrete actions: dueling heads, and the policy that explores by epsilon."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from learner.agent_options import AgentOptions
from learner.agents.distributions import Categorical
from learner.agents.layers import Dense, Variables, prefixed
from learner.agents.networks import Network
from learner.experience.trajectory import ActInputs, ActOutputs, Batch, State, Tensor
from protos.errors import ConfigError
from protos.specs import EnvironmentSpec


class DuelingHead:
    """Features to Q values (Wang et al. 2016, https://arxiv.org/abs/1511.06581, equation 9):

        Q(x, a) = V(x) + A(x, a) - mean_a' A(x, a')

    Each stream has a hidden layer as wide as the features.
    """

    def __init__(self, features: int, num_actions: int, rng: np.random.Generator) -> None:
        self._streams: dict[str, tuple[Dense, Dense]] = {}
        self.variables: Variables = {}
        for name, outputs in (("value", 1), ("advantage", num_actions)):
            hidden = Dense(features, features, rng, activation="relu")
            last = Dense(features, outputs, rng, gain=1.0)
            self._streams[name] = hidden, last
            self.variables |= prefixed(f"{name}/hidden", hidden.variables)
            self.variables |= prefixed(f"{name}/output", last.variables)

    def __call__(self, features: Tensor) -> Tensor:
        """float32 [N, A] from [N, features]."""
        value, advantage = (last(hidden(features)) for hidden, last in self._streams.values())
        return value + advantage - tf.reduce_mean(advantage, -1, keepdims=True)


class QPolicy:
    """Implements `Policy`: greedy in Q, or at random with the probability epsilon.

    In training, epsilon depends on the environment (see `epsilon_ladder`); in evaluation it is
    `eval_epsilon`. Records "action", the index of the action from 0.

    Args:
        spec: of the environments to act in.
        options: the network, and how to explore.
        seed: decides the initial weights; the same seed gives the same.

    Raises:
        ConfigError: the options do not fit the observation, or the action is not Discrete.
    """

    def __init__(self, spec: EnvironmentSpec, options: AgentOptions, seed: int) -> None:
        if not spec.action.categorical or spec.action.shape != ():
            raise ConfigError(
                f"--agent {options.agent} learns the values of Discrete actions, but the action is "
                f"{spec.action}: choose --agent vtrace, ppo or a2c"
            )
        rng = np.random.default_rng(seed)
        self._options = options
        self._actions = Categorical(spec.action)
        self._num_actions = int(spec.action.num_categories)
        self._network = Network(spec.observation, options, rng)
        self._head = DuelingHead(self._network.features, self._num_actions, rng)
        self._ladder = epsilon_ladder(options)
        self.trainable: Variables = prefixed("network", self._network.variables) | prefixed(
            "head", self._head.variables
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
        (features,), state = self._network.step(inputs.observation, state)
        action = tf.argmax(self._head(features), -1, tf.int32)
        if not greedy:
            epsilon = tf.gather(tf.constant(self._ladder), inputs.slot % len(self._ladder))
            action = self._explore(action, epsilon, seed)
        elif self._options.eval_epsilon:
            action = self._explore(action, self._options.eval_epsilon, seed)
        return ActOutputs(self._actions.to_environment(action), {"action": action}), state

    def q_values(self, batch: Batch, burn_in: int = 0) -> Tensor:
        """Q of all rows after the first `burn_in`, as the present weights have them: [R, B, A].

        The stored memory is that before row 0, so that it is brought up to the first row that counts by
        the rows before, through which no gradient flows (Kapturowski et al. 2019, section 3).
        """
        state = batch.initial_state
        if burn_in:
            rows = tuple(leaf[:burn_in] for leaf in batch.observation)
            _, state = self._network.unroll(rows, batch.first[:burn_in], state)
            fresh = batch.first[burn_in]
            state = {k: tf.stop_gradient(_zero_where(fresh, v)) for k, v in state.items()}
        rows = tuple(leaf[burn_in:] for leaf in batch.observation)
        (features,), _ = self._network.unroll(rows, batch.first[burn_in:], state)
        values = self._head(tf.reshape(features, [-1, features.shape[2]]))
        return tf.reshape(values, [batch.first.shape[0] - burn_in, -1, self._num_actions])

    def _explore(self, action: Tensor, epsilon: Tensor, seed: Tensor) -> Tensor:
        uniform = tf.random.stateless_uniform([2, tf.size(action)], seed)
        anything = tf.cast(uniform[1] * self._num_actions, tf.int32)
        # Rounding can bring a float32 just below 1 up to the number of actions.
        anything = tf.minimum(anything, self._num_actions - 1)
        return tf.where(uniform[0] < epsilon, anything, action)


def _zero_where(mask: Tensor, x: Tensor) -> Tensor:
    """x [B, ...] with zeros where `mask` bool [B]."""
    return tf.where(tf.reshape(mask, [-1] + [1] * (len(x.shape) - 1)), tf.zeros_like(x), x)


def epsilon_ladder(options: AgentOptions) -> np.ndarray:
    """Epsilon of each training environment, float32 [N]: from much exploration to hardly any.

    Horgan et al. 2018, "Distributed prioritized experience replay" (https://arxiv.org/abs/1803.00933),
    section 4.1: epsilon^(1 + i alpha / (N - 1)), of which R2D2 takes epsilon 0.4 and alpha 7.
    """
    exponents = np.linspace(1.0, options.epsilon_exponent, options.exploring_environments)
    return (options.epsilon**exponents).astype(np.float32)
