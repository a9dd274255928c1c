"""R2D2: recurrent Q-learning from replayed sequences (Kapturowski et al. 2019,
"Recurrent experience replay in distributed reinforcement learning").

Without an LSTM it is Ape-X DQN (Horgan et al. 2018) on sequences.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from learner.agent_options import AgentOptions
from learner.agents.agent import PRIORITIES
from learner.agents.layers import prefixed
from learner.agents.normalizers import scaled_rewards
from learner.agents.optimizers import Optimizer
from learner.agents.q_network import QPolicy
from learner.experience.trajectory import Batch, Tensor
from learner.maths.masks import masked_mean
from learner.maths.td_targets import double_q_errors
from protos.specs import EnvironmentSpec


class R2D2Agent:
    """Implements `Agent`.

    The loss is the mean of w delta^2 / 2 over the batch's transitions after the burn-in: delta is the
    temporal difference of n-step double Q-learning with a target network, in rescaled values
    (`learner.maths.td_targets.double_q_errors`), and w each sequence's importance weight. A sequence's
    new priority is eta max |delta| + (1 - eta) mean |delta| (section 2.3).
    """

    def __init__(self, options: AgentOptions, spec: EnvironmentSpec, *, seed: int) -> None:
        self._options, self._spec, self._seed = options, spec, seed
        self._policy, self._target = self.make_policy(), self.make_policy()
        self._optimizer = Optimizer(options, self._policy.trainable)
        self._updates = tf.Variable(0, dtype=tf.int64, trainable=False, name="updates")

    @property
    def policy(self) -> QPolicy:
        return self._policy

    def make_policy(self) -> QPolicy:
        return QPolicy(self._spec, self._options, self._seed)

    @property
    def variables(self) -> Mapping[str, Any]:
        weights = prefixed("policy", self._policy.trainable) | prefixed("target", self._target.trainable)
        return (
            {name: variable.value for name, variable in weights.items()}
            | prefixed("optimizer", self._optimizer.variables)
            | {"updates": self._updates}
        )

    def update(self, batch: Batch, progress: Tensor) -> Mapping[str, Tensor]:
        weights = self._policy.variables
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            outputs = self.losses(batch)
        gradients = tape.gradient(outputs["loss"], weights)
        applied = self._optimizer.apply(outputs["loss"], gradients, progress)
        self._follow()
        return outputs | applied

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """The loss, scalars about the values, and the sequences' new priorities [B]."""
        options, burn_in = self._options, self._options.burn_in
        trained = slice(burn_in + 1, None)
        valid = ~(batch.terminated | batch.truncated)[burn_in:-1]
        q = self._policy.q_values(batch, burn_in)
        errors = double_q_errors(
            q=q,
            target_q=self._target.q_values(batch, burn_in),
            actions=batch.record["action"][burn_in:-1],
            rewards=scaled_rewards(options, batch.reward[trained]),
            discounts=options.discount * (1.0 - tf.cast(batch.terminated[trained], tf.float32)),
            valid=valid,
            n=options.n_step,
            rescaled=options.value_rescaling,
        )
        return {
            "loss": 0.5 * masked_mean(batch.weight * tf.square(errors), valid),
            "q": masked_mean(tf.reduce_max(q[:-1], -1), valid),
            "td_error": masked_mean(tf.abs(errors), valid),
            PRIORITIES: self._priorities(tf.abs(errors), valid),
        }

    def _priorities(self, errors: Tensor, valid: Tensor) -> Tensor:
        """eta max + (1 - eta) mean of the |TD errors| [R - 1, B], 0 where not `valid`: [B]."""
        eta = self._options.priority_max_share
        count = tf.maximum(tf.reduce_sum(tf.cast(valid, tf.float32), 0), 1.0)
        return eta * tf.reduce_max(errors, 0) + (1.0 - eta) * tf.reduce_sum(errors, 0) / count

    def _follow(self) -> None:
        """Count the update; copy the weights to the target network every `target_period` of them."""

        def copy() -> Tensor:
            for weight, target in zip(self._policy.variables, self._target.variables, strict=True):
                target.assign(weight)
            return tf.constant(True)

        due = self._updates.assign_add(1) % self._options.target_period == 0
        tf.cond(due, copy, lambda: tf.constant(False))
