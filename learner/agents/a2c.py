"""Advantage actor-critic, the synchronous member of the A3C family (Mnih et al. 2016, algorithm S3,
https://arxiv.org/abs/1602.01783)."""

from collections.abc import Mapping

import tensorflow as tf

from learner.agents.actor_critic import ActorCriticAgent, transitions
from learner.experience.trajectory import Batch, Tensor
from learner.maths.gae import gae
from learner.maths.masks import masked


class A2CAgent(ActorCriticAgent):
    """Implements `Agent`.

    The loss is policy_loss + value_cost value_loss - entropy_cost entropy, each a mean over the
    batch's transitions (the pairs of rows that are none are left out):

        policy_loss = -advantage log pi(a|x)    value_loss = (R - V(x))^2 / 2    entropy of pi(.|x)

    R is the lambda-return: at the default lambda of 1, all rewards to the end of the unroll and the
    value there. No importance weight corrects for actions of an older policy, so acting waits while
    training uses what it gathered (`UnrollQueue(lock_step=True)`). With as many unrolls in a batch as
    there are environments, all in one actor, every action is of the newest weights but the first of
    each unroll, which was chosen with the last row of the unroll before. With more actors, one that
    runs ahead begins its next unroll with the old weights, too. What lag there is, is reported as
    the policy lag in versions, and as "behaviour_kl" in nats.
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
        estimates = gae(
            discounts=self.discounts(batch),
            rewards=self.rewards(batch),
            values=values,
            bootstrap_value=evaluation.values[-1],
            valid=valid,
            lambda_=options.gae_lambda,
        )
        advantages = estimates.advantages
        if options.normalize_advantages:
            advantages = self.standardized(advantages, valid)
        # The masked actions too: a mask on the loss alone would still let NaN into the gradient.
        actions = masked(batch.record["action"][:-1], valid)
        log_probs = distribution.log_prob(parameters, actions)
        mean = self.mean_over(valid)
        policy_loss = -mean(advantages * log_probs)
        value_loss = 0.5 * mean(tf.square(estimates.targets - values))
        entropy = mean(distribution.entropy(parameters))
        return {
            **self.weighted(policy_loss, value_loss, entropy),
            "behaviour_kl": mean(batch.record["log_prob"][:-1] - log_probs),
        }
