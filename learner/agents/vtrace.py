"""IMPALA's actor-critic with V-trace (Espeholt et al. 2018, section 4.2)."""

from collections.abc import Mapping

import tensorflow as tf

from learner.agents.actor_critic import ActorCriticAgent, transitions
from learner.experience.trajectory import Batch, Tensor
from learner.maths.masks import masked
from learner.maths.vtrace import vtrace


class VTraceAgent(ActorCriticAgent):
    """Implements `Agent`.

    The loss is policy_loss + value_cost value_loss - entropy_cost entropy, each a mean over the
    batch's transitions (the pairs of rows that are none are left out):

        policy_loss = -advantage log pi(a|x)    value_loss = (v - V(x))^2 / 2    entropy of pi(.|x)
    """

    def update(self, batch: Batch, progress: Tensor) -> Mapping[str, Tensor]:
        self.observe(batch)
        return self.descend(lambda: self.losses(batch), progress)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """The loss, its parts, and how far the acting policy lags behind; scalars."""
        options, distribution = self._options, self._policy.distribution
        valid = transitions(batch)
        evaluation = self._policy.evaluate(batch)
        parameters, values = evaluation.parameters[:-1], evaluation.values[:-1]

        # The masked actions too: a mask on the loss alone would still let NaN into the gradient.
        actions = masked(batch.record["action"][:-1], valid)
        log_probs = distribution.log_prob(parameters, actions)
        log_rhos = log_probs - batch.record["log_prob"][:-1]
        returns = vtrace(
            log_rhos=log_rhos,
            discounts=self.discounts(batch),
            rewards=self.rewards(batch),
            values=values,
            bootstrap_value=evaluation.values[-1],
            valid=valid,
            rho_clip=options.rho_clip,
            pg_rho_clip=options.rho_clip,
            c_clip=options.trace_clip,
            lambda_=options.trace_lambda,
        )
        mean = self.mean_over(valid)
        policy_loss = -mean(returns.advantages * log_probs)
        value_loss = 0.5 * mean(tf.square(returns.targets - values))
        entropy = mean(distribution.entropy(parameters))
        return {
            **self.weighted(policy_loss, value_loss, entropy),
            "importance_weight": mean(tf.minimum(options.rho_clip, tf.exp(log_rhos))),
            "behaviour_kl": -mean(log_rhos),
        }
