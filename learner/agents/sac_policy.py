"""The policy that soft actor-critic acts with."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from learner.agent_options import AgentOptions
from learner.agents.layers import Variables, prefixed
from learner.agents.networks import choose_torso
from learner.agents.normalizers import ObservationNormalizer
from learner.agents.q_functions import BatchedMlp, flat, flat_size
from learner.agents.soft_actions import make_soft_actions
from learner.experience.trajectory import ActInputs, ActOutputs, State, Tensor
from protos.errors import ConfigError
from protos.specs import EnvironmentSpec


class SacPolicy:
    """Implements `Policy`. Records "action", as the critics read it.

    Until the first update it acts uniformly at random: what fills the replay before training starts
    (`--replay-min-size`) is then as varied as can be. A greedy policy never does.

    Args:
        spec: of the environments to act in.
        options: the network.
        seed: decides the initial weights; the same seed gives the same.

    Raises:
        ConfigError: the options do not fit the spec.
    """

    def __init__(self, spec: EnvironmentSpec, options: AgentOptions, seed: int) -> None:
        self.actions = make_soft_actions(spec.action)
        _check_observation(spec, options)
        self._leaves = spec.observation
        self.normalizer: ObservationNormalizer | None = None
        if options.normalize_observations:
            self.normalizer = ObservationNormalizer(spec.observation)
        self._network = BatchedMlp(
            flat_size(spec.observation),
            options.hidden_sizes,
            self.actions.num_parameters,
            np.random.default_rng([seed, 0]),
            copies=1,
            activation=options.activation,
            # The first policy is nearly the same everywhere.
            gain=0.01,
        )
        self.trainable: Variables = self._network.variables
        self._at_random = keras.Variable(True, trainable=False, dtype="bool", name="at_random")

    @property
    def state_specs(self) -> Mapping[str, Any]:
        return {}

    @property
    def variables(self) -> list[Any]:
        return [*self.weights, *self.statistics.values()]

    @property
    def weights(self) -> list[Any]:
        """The tf.Variables that gradients train."""
        return [variable.value for variable in self.trainable.values()]

    @property
    def statistics(self) -> dict[str, Any]:
        """The tf.Variables that acting reads and no gradient trains, by stable name."""
        moments = {} if self.normalizer is None else self.normalizer.variables
        return {"at_random": self._at_random.value, **prefixed("observation_normalizer", moments)}

    def act(
        self, inputs: ActInputs, state: State, *, seed: Tensor, greedy: bool
    ) -> tuple[ActOutputs, State]:
        parameters = self.parameters(self.read(inputs.observation))
        if greedy:
            action = self.actions.mode(parameters)
        else:
            sampled = self.actions.sample(parameters, seed)
            action = tf.where(self._at_random.value, self.actions.uniform(parameters, seed), sampled)
        return ActOutputs(self.actions.to_environment(action), {"action": action}), state

    def trained(self) -> None:
        """From now on, act by what was learned."""
        self._at_random.value.assign(False)

    def read(self, observation: Sequence[Tensor]) -> Tensor:
        """float32 [N, size], as networks read it, from [N, *shape] of each leaf."""
        leaves = observation if self.normalizer is None else self.normalizer(observation)
        return flat(self._leaves, leaves)

    def parameters(self, observation: Tensor) -> Tensor:
        """[N, parameters] of the action distribution, from what was read, [N, size]."""
        return self._network(observation)[0]


def _check_observation(spec: EnvironmentSpec, options: AgentOptions) -> None:
    torso = choose_torso(spec.observation, options)
    if torso != "mlp":
        found = "; ".join(map(str, spec.observation))
        raise ConfigError(
            f"--agent sac reads observations by an MLP, and the {torso} torso is one of convolutions, "
            f"for an image in ({found}): say --torso mlp to flatten it, or choose another agent"
        )
