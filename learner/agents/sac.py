"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905), and for Discrete actions Christodoulou
2019 (arXiv:1910.07207)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from learner.agent_options import AgentOptions
from learner.agents.agent import PRIORITIES
from learner.agents.layers import Variables, prefixed
from learner.agents.normalizers import scaled_rewards
from learner.agents.optimizers import Optimizer
from learner.agents.q_functions import BatchedMlp, Polyak, flat_size
from learner.agents.sac_policy import SacPolicy
from learner.experience.trajectory import Batch, Tensor
from learner.maths.masks import masked, masked_mean
from learner.maths.n_step import n_step, take_rows
from protos.specs import EnvironmentSpec

NUM_CRITICS = 2

REPORTED = (
    "loss", "critic_loss", "policy_loss", "temperature_loss", "q", "entropy", "temperature",
    "gradient_norm", "learning_rate",
)  # fmt: skip
"""float32 scalars of each gradient step; means over a batch's. "q" is of the transitions' actions."""


class Transitions(NamedTuple):
    """N transitions of one step or more, as the losses read them."""

    observation: Tensor
    """float32 [N, size]"""
    action: Tensor
    """[N, ...], as the critics read it"""
    returns: Tensor
    """float32 [N]: rewards before the bootstrap"""
    discounts: Tensor
    """float32 [N]: of the value that it bootstraps from"""
    next_observation: Tensor
    """float32 [N, size]: where it bootstraps from"""
    valid: Tensor
    """bool [N]: what is not valid is no transition, and changes nothing"""
    weight: Tensor
    """float32 [N]: importance weight in the critics' loss"""


class SacAgent:
    """Implements `Agent`.

    With twin critics Q_i, their slowly following copies Q'_i, temperature alpha, and actions a' and a~
    of the policy at s' and s, the losses are the means, over a batch's transitions, of

        critic_loss = sum_i (Q_i(s, a) - y)^2 / 2                               equation 5
            y = r + gamma (min_i Q'_i(s', a') - alpha log pi(a'|s'))            equations 2, 3
        policy_loss = alpha log pi(a~|s) - min_i Q_i(s, a~)                     equation 9
        temperature_loss = -log alpha (log pi(a~|s) + target entropy)           equation 18

    all by the weights before the step; the pairs of rows that are no transition are left out. The
    temperature's has log alpha where the paper has alpha, as implementations do: the gradient does not
    vanish with alpha.
    """

    def __init__(self, options: AgentOptions, spec: EnvironmentSpec, *, seed: int) -> None:
        self._options, self._spec, self._seed = options, spec, seed
        self._policy = self.make_policy()
        self._actions = self._policy.actions
        chosen = options.target_entropy
        self._target_entropy = self._actions.target_entropy if chosen is None else chosen
        self._critics, self._targets = self._make_critics(), self._make_critics()
        self._polyak = Polyak(self._critics.variables, self._targets.variables, options.target_smoothing)
        self._log_alpha = keras.Variable(
            np.float32(np.log(options.initial_temperature)), name="log_alpha"
        )
        self._optimizers = self._make_optimizers()
        self._noise_seed = int(np.random.default_rng([seed, 2]).integers(2**31))
        self._steps = tf.Variable(0, dtype=tf.int32, trainable=False, name="gradient_steps")

    @property
    def policy(self) -> SacPolicy:
        return self._policy

    def make_policy(self) -> SacPolicy:
        return SacPolicy(self._spec, self._options, self._seed)

    @property
    def variables(self) -> Mapping[str, Any]:
        weights = (
            prefixed("policy", self._policy.trainable)
            | prefixed("critics", self._critics.variables)
            | prefixed("targets", self._targets.variables)
            | {"log_alpha": self._log_alpha}
        )
        statistics = prefixed("policy", self._policy.statistics) | {"gradient_steps": self._steps}
        state = {
            f"optimizer/{part}/{name}": variable
            for part, optimizer in self._optimizers.items()
            for name, variable in optimizer.variables.items()
        }
        return {name: v.value for name, v in weights.items()} | statistics | state

    def update(self, batch: Batch, progress: Tensor) -> Mapping[str, Tensor]:
        """`gradient_steps` steps, each by its own part of the batch; the scalars are means over
        them."""
        self._policy.trained()
        if self._policy.normalizer is not None:
            self._policy.normalizer.update([leaf[0] for leaf in batch.observation])
        transitions, steps = self.transitions(batch), self._options.gradient_steps
        each = self._each_step(transitions, steps, progress)
        scalars = {name: tf.reduce_mean(each[name]) for name in REPORTED}
        scalars["skipped_updates"] = each["skipped_updates"][-1] // steps
        if self._options.priority_exponent:
            scalars[PRIORITIES] = tf.reshape(each[PRIORITIES], [-1])
        return scalars

    def transitions(self, batch: Batch) -> Transitions:
        """The batch's windows [n+1, B] as B transitions of n steps, or fewer where the episode ends."""
        options, policy = self._options, self._policy
        rewards = scaled_rewards(options, batch.reward)
        target = n_step(rewards, batch.terminated, batch.truncated, options.discount)
        return Transitions(
            observation=policy.read([leaf[0] for leaf in batch.observation]),
            # The masked too: a mask on the loss alone would still let NaN into the gradient.
            action=masked(batch.record["action"][:1], target.valid[None])[0],
            returns=target.returns,
            discounts=target.discounts,
            next_observation=policy.read(take_rows(batch.observation, target.rows)),
            valid=target.valid,
            weight=batch.weight,
        )

    def critic_targets(self, transitions: Transitions, seed: Tensor) -> Tensor:
        """y, float32 [N]."""
        observation = transitions.next_observation
        parameters = self._policy.parameters(observation)
        expected = self._actions.expected(self._targets, observation, parameters, seed)
        values = expected.q - tf.exp(self._log_alpha.value) * expected.log_prob
        return transitions.returns + transitions.discounts * values

    def _each_step(self, transitions: Transitions, steps: int, progress: Tensor) -> dict[str, Tensor]:
        """What each gradient step returns, [steps, ...]."""
        rows = transitions.valid.shape[0]
        if steps == 1:
            return {name: x[None] for name, x in self._step(transitions, progress).items()}
        parts = tf.nest.map_structure(
            lambda x: tf.reshape(x, [steps, rows // steps, *x.shape[1:]]), transitions
        )
        outputs: dict[str, Any] = dict.fromkeys(REPORTED, tf.TensorSpec((), tf.float32))
        outputs["skipped_updates"] = tf.TensorSpec((), tf.int64)
        outputs[PRIORITIES] = tf.TensorSpec((rows // steps,), tf.float32)
        # One after the other: each is by the weights that the one before has left.
        stacked: dict[str, Tensor] = tf.map_fn(
            lambda part: self._step(part, progress),
            parts,
            parallel_iterations=1,
            fn_output_signature=outputs,
        )
        return stacked

    def _step(self, transitions: Transitions, progress: Tensor) -> dict[str, Tensor]:
        """One gradient step of everything; the scalars `REPORTED`, the skipped steps, priorities [N]."""
        step = self._steps.assign_add(1)
        targets = self.critic_targets(transitions, tf.stack([self._noise_seed, 2 * step]))
        critic = self._critic_step(transitions, targets)
        policy = self._policy_step(transitions, tf.stack([self._noise_seed, 2 * step + 1]))
        temperature = self._temperature_step(policy.pop("surplus"))
        loss = critic["critic_loss"] + policy["policy_loss"] + temperature["temperature_loss"]
        gradients = {
            part: outputs.pop("gradients")
            for part, outputs in (("critic", critic), ("policy", policy), ("temperature", temperature))
        }
        applied = {
            part: optimizer.apply(loss, gradients[part], progress)
            for part, optimizer in self._optimizers.items()
        }
        self._polyak.step()
        norms = [one["gradient_norm"] for one in applied.values()]
        return {
            "loss": loss,
            **critic,
            **policy,
            **temperature,
            "gradient_norm": tf.linalg.norm(tf.stack(norms)),
            "learning_rate": applied["policy"]["learning_rate"],
            "skipped_updates": tf.reduce_max([one["skipped_updates"] for one in applied.values()]),
        }

    def _critic_step(self, transitions: Transitions, targets: Tensor) -> dict[str, Any]:
        """Loss and gradients of the critics, mean Q, and |TD error| [N] as priorities."""
        valid, weights = transitions.valid, _tensors(self._critics)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            q = self._actions.taken(self._critics, transitions.observation, transitions.action)
            errors = tf.where(valid, q - targets, 0.0)
            squares = tf.reduce_sum(tf.square(errors), 0)
            loss = 0.5 * masked_mean(transitions.weight * squares, valid)
        return {
            "critic_loss": loss,
            "gradients": tape.gradient(loss, weights),
            "q": masked_mean(tf.reduce_mean(q, 0), valid),
            PRIORITIES: tf.reduce_mean(tf.abs(errors), 0),
        }

    def _policy_step(self, transitions: Transitions, seed: Tensor) -> dict[str, Any]:
        """Loss and gradients of the policy, its mean entropy, and how far that is above its target."""
        valid, observation = transitions.valid, transitions.observation
        weights = self._policy.weights
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            parameters = self._policy.parameters(observation)
            expected = self._actions.expected(self._critics, observation, parameters, seed)
            loss = masked_mean(tf.exp(self._log_alpha.value) * expected.log_prob - expected.q, valid)
        return {
            "policy_loss": loss,
            "gradients": tape.gradient(loss, weights),
            "entropy": -masked_mean(expected.log_prob, valid),
            # Masked itself: a batch without transitions says nothing of the entropy.
            "surplus": -masked_mean(expected.log_prob + self._target_entropy, valid),
        }

    def _temperature_step(self, surplus: Tensor) -> dict[str, Any]:
        """Loss and gradient of the temperature, and itself."""
        log_alpha = self._log_alpha.value
        return {
            "temperature_loss": log_alpha * surplus,
            "gradients": [surplus],
            "temperature": tf.exp(log_alpha),
        }

    def _make_critics(self) -> BatchedMlp:
        return BatchedMlp(
            flat_size(self._spec.observation) + self._actions.critic_inputs,
            self._options.hidden_sizes,
            self._actions.critic_outputs,
            np.random.default_rng([self._seed, 1]),
            copies=NUM_CRITICS,
            activation=self._options.activation,
        )

    def _make_optimizers(self) -> dict[str, Optimizer]:
        options = self._options

        def make(trainable: Variables, rate: float) -> Optimizer:
            return Optimizer(options, trainable, dict.fromkeys(trainable, rate))

        optimizers = {
            "policy": make(self._policy.trainable, options.learning_rate),
            "critic": make(self._critics.variables, options.critic_learning_rate),
        }
        if options.temperature_learning_rate:
            trainable = {"log_alpha": self._log_alpha}
            optimizers["temperature"] = make(trainable, options.temperature_learning_rate)
        return optimizers


def _tensors(network: BatchedMlp) -> list[Any]:
    """The tf.Variables of its weights."""
    return [variable.value for variable in network.variables.values()]
