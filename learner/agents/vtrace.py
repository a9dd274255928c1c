"""IMPALA's actor-critic with V-trace (Espeholt et al. 2018, section 4.2)."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from learner.agents.actor_critic import ActorCriticPolicy
from learner.agents.optimizers import Optimizer
from learner.config import AgentOptions
from learner.experience.trajectory import Batch, Tensor
from learner.maths.vtrace import vtrace
from protos.specs import EnvironmentSpec


class VTraceAgent:
    """Implements `Agent`.

    The loss is policy_loss + value_cost value_loss - entropy_cost entropy, each a mean over the
    batch's transitions (the pairs of rows that are none are left out):

        policy_loss = -advantage log pi(a|x)    value_loss = (v - V(x))^2 / 2    entropy of pi(.|x)
    """

    def __init__(self, options: AgentOptions, spec: EnvironmentSpec, *, seed: int) -> None:
        self._options, self._spec, self._seed = options, spec, seed
        self._policy = self.make_policy()
        self._optimizer = Optimizer(options, self._policy.trainable)

    @property
    def policy(self) -> ActorCriticPolicy:
        return self._policy

    def make_policy(self) -> ActorCriticPolicy:
        return ActorCriticPolicy(self._spec, self._options, self._seed)

    @property
    def variables(self) -> Mapping[str, Any]:
        weights = {f"policy/{name}": v.value for name, v in self._policy.trainable.items()}
        state = {f"optimizer/{name}": v for name, v in self._optimizer.variables.items()}
        return weights | state

    def update(self, batch: Batch, progress: Tensor) -> Mapping[str, Tensor]:
        weights = self._policy.variables
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            scalars = self.losses(batch)
        gradients = tape.gradient(scalars["loss"], weights)
        return scalars | self._optimizer.apply(scalars["loss"], gradients, progress)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """The loss, its parts, and how far the acting policy lags behind; scalars."""
        options, distribution = self._options, self._policy.distribution
        valid = ~(batch.terminated | batch.truncated)[:-1]
        evaluation = self._policy.evaluate(batch)
        parameters, values = evaluation.parameters[:-1], evaluation.values[:-1]

        # The masked actions too: a mask on the loss alone would still let NaN into the gradient.
        actions = _where(valid, batch.record["action"][:-1])
        log_probs = distribution.log_prob(parameters, actions)
        log_rhos = log_probs - batch.record["log_prob"][:-1]
        returns = vtrace(
            log_rhos=log_rhos,
            discounts=options.discount * (1.0 - tf.cast(batch.terminated[1:], tf.float32)),
            rewards=_clip(batch.reward[1:], options.reward_clip),
            values=values,
            bootstrap_value=evaluation.values[-1],
            valid=valid,
            rho_clip=options.rho_clip,
            pg_rho_clip=options.rho_clip,
            c_clip=options.trace_clip,
            lambda_=options.trace_lambda,
        )
        policy_loss = -_mean(returns.advantages * log_probs, valid)
        value_loss = 0.5 * _mean(tf.square(returns.targets - values), valid)
        entropy = _mean(distribution.entropy(parameters), valid)
        loss = policy_loss + options.value_cost * value_loss - options.entropy_cost * entropy
        return {
            "loss": loss,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "importance_weight": _mean(tf.minimum(options.rho_clip, tf.exp(log_rhos)), valid),
            "behaviour_kl": -_mean(log_rhos, valid),
        }


def _clip(rewards: Tensor, limit: float) -> Tensor:
    return tf.clip_by_value(rewards, -limit, limit) if limit else rewards


def _mean(x: Tensor, valid: Tensor) -> Tensor:
    """Mean of x [T, B] where `valid`; 0 if that is nowhere."""
    count = tf.reduce_sum(tf.cast(valid, x.dtype))
    return tf.reduce_sum(_where(valid, x)) / tf.maximum(count, 1.0)


def _where(valid: Tensor, x: Tensor) -> Tensor:
    """x [T, B, ...] where `valid` [T, B], and 0 elsewhere."""
    mask = tf.reshape(valid, [*valid.shape[:1], -1] + [1] * (len(x.shape) - 2))
    return tf.where(mask, x, tf.zeros_like(x))
