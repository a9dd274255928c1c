"""Generalized advantage estimation (Schulman et al. 2016, https://arxiv.org/abs/1506.02438).

Time-major, in the paper's notation: a_t was taken in x_t, and r_t and x_{t+1} came of it.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from learner.maths.scan import reverse_scan

Tensor = Any


class Estimates(NamedTuple):
    """What the losses of A2C and PPO regress to. No gradient flows through either."""

    targets: Tensor
    """float32 [T, B]: the lambda-returns of x_t, for V(x_t)."""
    advantages: Tensor
    """float32 [T, B]: GAE(gamma, lambda), for the policy gradient."""


def gae(
    *,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    valid: Tensor,
    lambda_: float,
) -> Estimates:
    """Equation 16: A_t = sum_l (gamma lambda)^l delta_{t+l}, with delta_t = r_t + gamma V_{t+1} - V_t.

    At lambda = 1 these are n-step returns, up to the end of the unroll, less V (as in A3C).

    A pair of rows that is no transition (t is the last row of an episode, t+1 the first of the next)
    has the advantage 0 and its own value as target: what the transition into it bootstraps from,
    times its discount (0 if the episode terminated, gamma if it was truncated). No sum crosses it, and
    its reward and discount have no influence.

    Args:
        discounts: float32 [T, B], gamma_t: 0 if the transition t -> t+1 terminated the episode. T is
            static.
        rewards: float32 [T, B], r_t of the transition t -> t+1.
        values: float32 [T, B], V(x_t).
        bootstrap_value: float32 [B], V(x_T).
        valid: bool [T, B], False where t -> t+1 is no transition.
        lambda_: 0 trusts the values (little variance), 1 the rewards (no bias).

    Raises:
        ValueError: shapes other than these.
    """
    _check_shapes(bootstrap_value, discounts, rewards, values, valid)
    values, bootstrap_value = tf.stop_gradient(values), tf.stop_gradient(bootstrap_value)
    next_values = tf.concat([values[1:], bootstrap_value[None]], 0)
    zeros = tf.zeros_like(values)
    deltas = tf.where(valid, rewards + discounts * next_values - values, zeros)
    advantages = reverse_scan(deltas, tf.where(valid, discounts * lambda_, zeros))
    return Estimates(values + advantages, advantages)


def _check_shapes(bootstrap_value: Tensor, *time_major: Tensor) -> None:
    shapes = [x.shape for x in time_major]
    length, *batch = shapes[0] if shapes[0].rank == 2 else (None,)
    if length is None or any(not s.is_compatible_with(shapes[0]) for s in shapes[1:]):
        found = ", ".join(map(str, shapes))
        raise ValueError(
            "gae: expected discounts, rewards, values and valid of one shape [T, B] with a static T, "
            f"found {found}"
        )
    if not bootstrap_value.shape.is_compatible_with(batch):
        raise ValueError(f"gae: expected bootstrap_value of {batch}, found {bootstrap_value.shape}")
