"""V-trace (Espeholt et al. 2018, "IMPALA", https://arxiv.org/abs/1802.01561, section 4.1).

The paper's notation, time-major: the behaviour policy mu took a_t in x_t and saw r_t and x_{t+1}; pi
is the policy that learns.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from learner.maths.scan import reverse_scan

Tensor = Any


class VTrace(NamedTuple):
    """What the losses regress to. No gradient flows through either."""

    targets: Tensor
    """float32 [T, B]: v_s, the n-step V-trace targets of V(x_s)."""
    advantages: Tensor
    """float32 [T, B]: clipped rho_s (r_s + gamma_s v_{s+1} - V(x_s)), for the policy gradient."""


def vtrace(
    *,
    log_rhos: Tensor,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    valid: Tensor,
    rho_clip: float = 1.0,
    pg_rho_clip: float = 1.0,
    c_clip: float = 1.0,
    lambda_: float = 1.0,
) -> VTrace:
    """V-trace targets and policy gradient advantages, equations 1 to 4.

    A pair of rows that is no transition (t is the last row of an episode, t+1 the first of the next)
    has the importance weights rho_t = c_t = 0. So the target of a last row is its own V(x_t), which
    is what the transition into it bootstraps from (times its discount: 0 if the episode terminated,
    gamma if it was truncated); its advantage is 0, and no trace crosses it. Nothing else that stands
    at such a t (reward, log_rho, discount) has any influence.

    With lambda < 1, c_t = lambda min(c_clip, rho_t) (remark 2), and the advantages bootstrap from
    lambda v_{s+1} + (1 - lambda) V(x_{s+1}) as rlax does: on-policy they are then GAE(lambda).

    Args:
        log_rhos: float32 [T, B], log pi(a_t | x_t) - log mu(a_t | x_t). T is static.
        discounts: float32 [T, B], gamma_t: 0 if the transition t -> t+1 terminated the episode.
        rewards: float32 [T, B], r_t of the transition t -> t+1.
        values: float32 [T, B], V(x_t) by the network that learns.
        bootstrap_value: float32 [B], V(x_T).
        valid: bool [T, B], False where t -> t+1 is no transition.
        rho_clip: rho bar, clips the weight of each temporal difference. It decides the fixed point.
        pg_rho_clip: clips the weight of the policy gradient.
        c_clip: c bar, clips how far a temporal difference travels back.
        lambda_: further decay of the traces.

    Raises:
        ValueError: shapes other than these.
    """
    _check_shapes(bootstrap_value, log_rhos, discounts, rewards, values, valid)
    log_rhos, rewards = tf.stop_gradient(log_rhos), tf.stop_gradient(rewards)
    values, bootstrap_value = tf.stop_gradient(values), tf.stop_gradient(bootstrap_value)

    zeros = tf.zeros_like(values)
    rhos = tf.where(valid, tf.exp(log_rhos), zeros)
    discounts = tf.where(valid, discounts, zeros)
    # Not only the weights are masked: 0 times a NaN would be a NaN.
    rewards = tf.where(valid, rewards, zeros)

    next_values = _next(values, bootstrap_value)
    deltas = tf.minimum(rho_clip, rhos) * (rewards + discounts * next_values - values)
    errors = reverse_scan(deltas, discounts * lambda_ * tf.minimum(c_clip, rhos))
    targets = values + errors

    next_targets = lambda_ * _next(targets, bootstrap_value) + (1 - lambda_) * next_values
    advantages = tf.minimum(pg_rho_clip, rhos) * (rewards + discounts * next_targets - values)
    return VTrace(targets, advantages)


def _next(x: Tensor, last: Tensor) -> Tensor:
    """x_{t+1} at t: [T, B] from x [T, B] and x_T [B]."""
    return tf.concat([x[1:], last[None]], axis=0)


def _check_shapes(bootstrap_value: Tensor, *time_major: Tensor) -> None:
    shapes = [x.shape for x in time_major]
    length, *batch = shapes[0] if shapes[0].rank == 2 else (None,)
    if length is None or any(not s.is_compatible_with(shapes[0]) for s in shapes[1:]):
        found = ", ".join(map(str, shapes))
        raise ValueError(
            f"vtrace: expected log_rhos, discounts, rewards, values and valid of one shape [T, B] with "
            f"a static T, found {found}"
        )
    if not bootstrap_value.shape.is_compatible_with(batch):
        raise ValueError(f"vtrace: expected bootstrap_value of {batch}, found {bootstrap_value.shape}")
