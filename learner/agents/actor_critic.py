"""A stochastic policy and a value function on one network, and what V-trace, A2C and PPO share."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from learner.agent_options import AgentOptions
from learner.agents.distributions import make_distribution
from learner.agents.layers import Variables, prefixed
from learner.agents.networks import Network, PolicyHead, ValueHead
from learner.agents.normalizers import ObservationNormalizer, RewardNormalizer, scaled_rewards
from learner.agents.optimizers import Optimizer
from learner.experience.trajectory import ActInputs, ActOutputs, Batch, State, Tensor
from learner.group import ALONE, Learners
from learner.maths.masks import masked_sum, standardized
from protos.specs import EnvironmentSpec

RETURN = "discounted_return"
"""Name, in the acting policy's memory and in its record, of the discounted return of the past."""


class Rows(Protocol):
    """What the network is run on: a `Batch`, or a part of one."""

    @property
    def observation(self) -> tuple[Tensor, ...]: ...
    @property
    def first(self) -> Tensor: ...
    @property
    def initial_state(self) -> State: ...


class Evaluation(NamedTuple):
    """What the present weights say about every row of a batch."""

    parameters: Tensor
    """float32 [T+1, B, parameters] of the action distribution."""
    values: Tensor
    """float32 [T+1, B]: V(x)."""


class ActorCriticPolicy:
    """Implements `Policy`. Records "action" (as sampled) and "log_prob"; "value" where it is asked for.

    Args:
        spec: of the environments to act in.
        options: the network.
        seed: decides the initial weights; the same seed gives the same.
        tracks_returns: whether the memory holds, and the record gets, the discounted return of the
            past, by which rewards are normalised.
        records_values: whether the record gets V(x). Where it does not, acting computes none.

    Raises:
        ConfigError: the options do not fit the observation or the action.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        options: AgentOptions,
        seed: int,
        *,
        tracks_returns: bool = False,
        records_values: bool = False,
    ) -> None:
        rng = np.random.default_rng(seed)
        self._options = options
        self._tracks_returns = tracks_returns
        self._records_values = records_values
        self.distribution = make_distribution(
            spec.action, mean=options.policy_mean, std=options.policy_std
        )
        self.observation_normalizer = (
            ObservationNormalizer(spec.observation) if options.normalize_observations else None
        )
        self._network = Network(spec.observation, options, rng, heads=2)
        for_policy, for_value = self._network.head_features
        self._policy_head = PolicyHead(for_policy, self.distribution, rng)
        self._value_head = ValueHead(for_value, rng)
        self.trainable: Variables = (
            prefixed("network", self._network.variables)
            | prefixed("policy_head", self._policy_head.variables)
            | prefixed("value_head", self._value_head.variables)
        )

    @property
    def state_specs(self) -> Mapping[str, Any]:
        tracked = {RETURN: tf.TensorSpec((), tf.float32)} if self._tracks_returns else {}
        return {**self._network.state_specs, **tracked}

    @property
    def weights(self) -> list[Any]:
        """The tf.Variables that gradients train."""
        return [variable.value for variable in self.trainable.values()]

    @property
    def statistics(self) -> Mapping[str, Any]:
        """The tf.Variables that acting reads and no gradient trains, by stable name."""
        normalizer = self.observation_normalizer
        return {} if normalizer is None else prefixed("observation_normalizer", normalizer.variables)

    @property
    def variables(self) -> list[Any]:
        return [*self.weights, *self.statistics.values()]

    @property
    def value_variables(self) -> list[str]:
        """Names, among `trainable`, of the variables that serve the value function alone."""
        prefixes = ("value_head/", "network/tower_1/")
        return [name for name in self.trainable if name.startswith(prefixes)]

    def act(
        self, inputs: ActInputs, state: State, *, seed: Tensor, greedy: bool
    ) -> tuple[ActOutputs, State]:
        observation = self._normalized(inputs.observation)
        (for_policy, for_value), new_state = self._network.step(observation, state)
        parameters = self._policy_head(for_policy)
        if greedy:
            action = self.distribution.mode(parameters)
        else:
            action = self.distribution.sample(parameters, seed)
        record = {
            "action": action,
            "log_prob": self.distribution.log_prob(parameters, action),
        }
        if self._records_values:
            record["value"] = self._value_head(for_value)
        if self._tracks_returns:
            record[RETURN] = new_state[RETURN] = self._return_after(inputs, state[RETURN])
        return ActOutputs(self.distribution.to_environment(action), record), new_state

    def evaluate(self, rows: Rows) -> Evaluation:
        """Parameters and values of all rows, as the present weights have them."""
        observation = self._normalized(rows.observation)
        features, _ = self._network.unroll(observation, rows.first, rows.initial_state)
        for_policy, for_value = (tf.reshape(x, [-1, x.shape[2]]) for x in features)
        parameters = self._policy_head(for_policy)
        length = rows.first.shape[0]
        return Evaluation(
            tf.reshape(parameters, [length, -1, parameters.shape[1]]),
            tf.reshape(self._value_head(for_value), [length, -1]),
        )

    def _normalized(self, observation: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        normalizer = self.observation_normalizer
        return observation if normalizer is None else tuple(normalizer(observation))

    def _return_after(self, inputs: ActInputs, past: Tensor) -> Tensor:
        """G_t = gamma G_{t-1} + r_t, float32 [B]. A first row's reward is none."""
        rewards = scaled_rewards(self._options, inputs.reward)
        return tf.where(inputs.reset, 0.0, self._options.discount * past + rewards)


class ActorCriticAgent:
    """An actor-critic policy, its optimizer and its normalizers: `Agent` but for `update`.

    `learns_from_recorded_values` is of those whose update reads the V(x) that acting saw; the others
    compute their own, and acting is spared it.

    Of learners that train together, every one takes the same steps: those of the losses' gradients
    over all their batches.
    """

    learns_from_recorded_values = False

    def __init__(
        self,
        options: AgentOptions,
        spec: EnvironmentSpec,
        *,
        seed: int,
        learners: Learners = ALONE,
    ) -> None:
        self._options, self._spec, self._seed = options, spec, seed
        self._learners = learners
        self._policy = self._new_policy()
        rate = options.value_learning_rate
        names = self._policy.value_variables if rate else []
        self._optimizer = Optimizer(options, self._policy.trainable, dict.fromkeys(names, rate))
        self._reward_normalizer = RewardNormalizer() if options.normalize_rewards else None

    @property
    def policy(self) -> ActorCriticPolicy:
        """The trained copy. It tracks no returns: only acting in training needs them."""
        return self._policy

    def make_policy(self) -> ActorCriticPolicy:
        """Another copy of the policy, with variables of its own: what inference acts with."""
        return self._new_policy(tracks_returns=self._options.normalize_rewards)

    @property
    def variables(self) -> Mapping[str, Any]:
        """Every tf.Variable that a checkpoint must hold, by stable name."""
        normalizer = self._reward_normalizer
        return (
            {f"policy/{name}": v.value for name, v in self._policy.trainable.items()}
            | prefixed("policy", self._policy.statistics)
            | prefixed("optimizer", self._optimizer.variables)
            | ({} if normalizer is None else prefixed("reward_normalizer", normalizer.variables))
        )

    def _new_policy(self, *, tracks_returns: bool = False) -> ActorCriticPolicy:
        return ActorCriticPolicy(
            self._spec,
            self._options,
            self._seed,
            tracks_returns=tracks_returns,
            records_values=self.learns_from_recorded_values,
        )

    def observe(self, batch: Batch) -> None:
        """Take a batch into the running moments.

        Before it is learned from: what is trained is then exactly what acts next.
        """
        # Row 0 is the row T of the unroll before, and was counted with that.
        if self._policy.observation_normalizer is not None:
            self._policy.observation_normalizer.update(
                [leaf[1:] for leaf in batch.observation], self._learners
            )
        if self._reward_normalizer is not None:
            self._reward_normalizer.update(batch.record[RETURN][1:], self._learners)

    def rewards(self, batch: Batch) -> Tensor:
        """float32 [T, B]: the reward of each transition, as learning gets it."""
        rewards = scaled_rewards(self._options, batch.reward[1:])
        return rewards if self._reward_normalizer is None else self._reward_normalizer(rewards)

    def discounts(self, batch: Batch) -> Tensor:
        """float32 [T, B]: the discount of what follows each transition; 0 if that ended the episode."""
        return self._options.discount * (1.0 - tf.cast(batch.terminated[1:], tf.float32))

    def weighted(self, policy_loss: Tensor, value_loss: Tensor, entropy: Tensor) -> dict[str, Tensor]:
        """The three parts and the "loss" that they make; scalars."""
        options = self._options
        return {
            "loss": policy_loss + options.value_cost * value_loss - options.entropy_cost * entropy,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
        }

    def mean_over(self, valid: Tensor) -> Callable[[Tensor], Tensor]:
        """A function of x [T, B]: this learner's part of the mean of x over the transitions (`valid`
        bool [T, B]) of all learners, who may have more of them or fewer. The mean is the mean of the
        parts; of one learner alone, it is the part."""
        (count,) = self._learners.mean([tf.reduce_sum(tf.cast(valid, tf.float32))])
        count = tf.maximum(count, 1.0 / self._learners.size)
        return lambda x: masked_sum(x, valid) / count

    def standardized(self, x: Tensor, valid: Tensor) -> Tensor:
        """x [T, B] less its mean, divided by its standard deviation, both over the transitions of all
        learners; 0 elsewhere."""
        part = self.mean_over(valid)
        return standardized(x, valid, mean=lambda x, _: self._learners.mean([part(x)])[0])

    def descend(self, losses: Callable[[], dict[str, Tensor]], progress: Tensor) -> dict[str, Tensor]:
        """One optimizer step on "loss" of what `losses` gives; its scalars and the optimizer's.

        What `losses` gives are parts of means (`mean_over`), and the step is that of their means over
        all learners: clipped, or skipped, by what all of them see.
        """
        weights = self._policy.weights
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            scalars = losses()
        gradients = tape.gradient(scalars["loss"], weights)
        means = self._learners.mean([*scalars.values(), *gradients])
        scalars = dict(zip(scalars, means[: len(scalars)], strict=True))
        gradients = means[len(scalars) :]
        return scalars | self._optimizer.apply(scalars["loss"], gradients, progress)


def transitions(batch: Batch) -> Tensor:
    """bool [T, B]: whether rows t and t+1 are a transition, and not the end of one episode and the
    beginning of the next."""
    return ~(batch.terminated | batch.truncated)[:-1]
