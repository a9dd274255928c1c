"""Proximal policy optimization with the clipped objective (Schulman et al. 2017,
https://arxiv.org/abs/1707.06347)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from learner.agent_options import AgentOptions
from learner.agents.actor_critic import ActorCriticAgent, transitions
from learner.experience.trajectory import Batch, State, Tensor
from learner.group import ALONE, Learners
from learner.maths.gae import gae
from learner.maths.masks import masked
from protos.specs import EnvironmentSpec


class Samples(NamedTuple):
    """N sequences of K transitions to choose minibatches from, with what does not change while the
    policy is optimised. K is T and N is B where the policy has a memory; else K is 1 and N is T x B."""

    observation: tuple[Tensor, ...]
    """[K, N, *shape] for each leaf"""
    first: Tensor
    """bool [K, N]"""
    initial_state: State
    """[N, ...] each: the memory before a sequence"""
    action: Tensor
    """[K, N, *shape], as the acting policy sampled it"""
    log_prob: Tensor
    """float32 [K, N]: of the action, by the policy that acted"""
    value: Tensor
    """float32 [K, N]: V(x), by the policy that acted"""
    advantage: Tensor
    """float32 [K, N]"""
    target: Tensor
    """float32 [K, N]: what V(x) is to become"""
    valid: Tensor
    """bool [K, N]: whether it is a transition"""


class PPOAgent(ActorCriticAgent):
    """Implements `Agent`. One update is `epochs` passes over the batch in `minibatches` steps each.

    The loss is policy_loss + value_cost value_loss - entropy_cost entropy, each a mean over the
    minibatch's transitions (the pairs of rows that are none are left out):

        policy_loss = -min(rho A, clip(rho, 1 - clip_ratio, 1 + clip_ratio) A)          (equation 7)
        value_loss  = (R - V(x))^2 / 2, or the larger of it and that of V clipped to the recorded value

    where rho = pi(a|x) / mu(a|x), A is GAE and R = A + the recorded value.

    mu is the policy that acted, which in an asynchronous service may be a few versions older than the
    one that the update begins with (and change within an unroll). log mu and V are those recorded
    with each action. So rho is the true importance weight of every transition, and need not be 1 at
    the first step: where lag has brought pi further from mu than the clip allows, the objective pulls
    no further, and the lag uses up part of the trust region instead of biasing the gradient. It
    reduces what is learned of a batch; `--lock-step` leaves none but that of each unroll's first
    action, which was chosen with the last row of the unroll before.

    A policy with a memory gets whole unrolls in its minibatches, each from the memory that was stored
    at its beginning (by mu); one without gets single transitions, shuffled.
    """

    learns_from_recorded_values = True

    def __init__(
        self,
        options: AgentOptions,
        spec: EnvironmentSpec,
        *,
        seed: int,
        learners: Learners = ALONE,
    ) -> None:
        super().__init__(options, spec, seed=seed, learners=learners)
        self._updates = tf.Variable(0, dtype=tf.int64, trainable=False, name="updates")

    @property
    def variables(self) -> Mapping[str, Any]:
        return {**super().variables, "updates": self._updates}

    def update(self, batch: Batch, progress: Tensor) -> Mapping[str, Tensor]:
        self.observe(batch)
        samples = self.samples(batch)
        choices = self._choices(samples.first.shape[1])

        def step(i: Tensor, sums: dict[str, Tensor], kl: Tensor) -> tuple[Any, ...]:
            minibatch = _gather(samples, choices[i])
            scalars = self.descend(lambda: self.losses(minibatch), progress)
            sums = {name: sums[name] + tf.cast(scalars[name], tf.float32) for name in sums}
            return i + 1, sums, scalars["behaviour_kl"]

        def goes_on(i: Tensor, sums: dict[str, Tensor], kl: Tensor) -> Tensor:
            limit = self._options.max_kl
            return (i < choices.shape[0]) & (kl <= limit) if limit else i < choices.shape[0]

        zeros = {name: tf.zeros(()) for name in _SCALARS}
        # One step's graph in a loop, for an unrolled one would be traced epochs x minibatches times.
        steps, sums, kl = tf.while_loop(goes_on, step, (tf.constant(0), zeros, tf.zeros(())))
        count = tf.cast(steps, tf.float32)
        scalars = {name: total / count for name, total in sums.items()}
        # Whole updates' worth, which is what the run counts.
        skipped = self._optimizer.variables["skipped_updates"].read_value() // choices.shape[0]
        return scalars | {"last_kl": kl, "steps": count, "skipped_updates": skipped}

    def samples(self, batch: Batch) -> Samples:
        """The batch's transitions with their advantages and targets."""
        options, record = self._options, batch.record
        valid = transitions(batch)
        estimates = gae(
            discounts=self.discounts(batch),
            rewards=self.rewards(batch),
            values=record["value"][:-1],
            bootstrap_value=record["value"][-1],
            valid=valid,
            lambda_=options.gae_lambda,
        )
        advantages = estimates.advantages
        if options.normalize_advantages:
            advantages = self.standardized(advantages, valid)
        unrolls = Samples(
            observation=tuple(leaf[:-1] for leaf in batch.observation),
            first=batch.first[:-1],
            initial_state={name: batch.initial_state[name] for name in self._policy.state_specs},
            # The masked too: a mask on the loss alone would still let NaN into the gradient.
            action=masked(record["action"][:-1], valid),
            log_prob=masked(record["log_prob"][:-1], valid),
            value=record["value"][:-1],
            advantage=advantages,
            target=estimates.targets,
            valid=valid,
        )
        return unrolls if self._policy.state_specs else _single_transitions(unrolls)

    def losses(self, samples: Samples) -> dict[str, Tensor]:
        """The loss on one minibatch, its parts, and how far the policy is from the acting one."""
        options, valid = self._options, samples.valid
        distribution = self._policy.distribution
        evaluation = self._policy.evaluate(samples)
        log_rhos = distribution.log_prob(evaluation.parameters, samples.action) - samples.log_prob
        rhos = tf.exp(log_rhos)
        clipped = tf.clip_by_value(rhos, 1.0 - options.clip_ratio, 1.0 + options.clip_ratio)
        objective = tf.minimum(rhos * samples.advantage, clipped * samples.advantage)
        mean = self.mean_over(valid)
        policy_loss = -mean(objective)
        value_loss = 0.5 * mean(self._value_errors(evaluation.values, samples))
        entropy = mean(distribution.entropy(evaluation.parameters))
        outside = tf.cast(tf.abs(rhos - 1.0) > options.clip_ratio, tf.float32)
        return {
            **self.weighted(policy_loss, value_loss, entropy),
            # KL(mu || pi) by Schulman's low-variance estimator, which is never negative.
            "behaviour_kl": mean(rhos - 1.0 - log_rhos),
            "clipped_fraction": mean(outside),
        }

    def _value_errors(self, values: Tensor, samples: Samples) -> Tensor:
        """float32 [K, N]: squared errors of the values."""
        errors, limit = tf.square(samples.target - values), self._options.clip_value
        if not limit:
            return errors
        clipped = samples.value + tf.clip_by_value(values - samples.value, -limit, limit)
        return tf.maximum(errors, tf.square(samples.target - clipped))

    def _choices(self, count: int) -> Tensor:
        """int32 [epochs x minibatches, size]: which of `count` sequences are in each minibatch; every
        pass has each of them once."""
        options = self._options
        number = self._updates.assign_add(1)
        orders = []
        for epoch in range(options.epochs):
            seed = tf.stack([tf.cast(self._seed, tf.int64), number * options.epochs + epoch])
            orders.append(tf.random.experimental.stateless_shuffle(tf.range(count), seed))
        return tf.reshape(tf.stack(orders), [-1, count // options.minibatches])


_SCALARS = (
    "loss",
    "policy_loss",
    "value_loss",
    "entropy",
    "behaviour_kl",
    "clipped_fraction",
    "gradient_norm",
    "learning_rate",
)
"""What is reported as a mean over an update's steps."""


def _single_transitions(unrolls: Samples) -> Samples:
    """T x B sequences of one transition each, of a policy that remembers nothing between them."""

    def single(x: Tensor) -> Tensor:
        return tf.reshape(x, [1, x.shape[0] * x.shape[1], *x.shape[2:]])

    arrays: Samples = tf.nest.map_structure(single, unrolls._replace(initial_state={}))
    return arrays


def _gather(samples: Samples, rows: Tensor) -> Samples:
    """Some of the sequences."""
    state = {name: tf.gather(value, rows) for name, value in samples.initial_state.items()}
    arrays: Samples = tf.nest.map_structure(
        lambda x: tf.gather(x, rows, axis=1), samples._replace(initial_state={})
    )
    return arrays._replace(initial_state=state)
