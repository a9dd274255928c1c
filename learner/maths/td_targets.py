"""n-step targets at every step of a sequence, over the ends of episodes; Q-learning by them."""

from typing import Any

import tensorflow as tf

from learner.maths.masks import masked
from learner.maths.value_rescaling import rescale, unscale

Tensor = Any


def double_q_errors(
    *,
    q: Tensor,
    target_q: Tensor,
    actions: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    valid: Tensor,
    n: int,
    rescaled: bool,
) -> Tensor:
    """Temporal differences of n-step double Q-learning, in rescaled values if so asked:

        delta_t = h(sum_{k<n} gamma^k r_{t+k+1} + gamma^n h^-1(Q'(x_{t+n}, a*))) - Q(x_t, a_t)
        a* = argmax_a Q(x_{t+n}, a)

    van Hasselt et al. 2016, "Deep reinforcement learning with double Q-learning", equation 4;
    Kapturowski et al. 2019, equation 1. The gradient flows through Q(x_t, a_t) alone.

    Args:
        q: float32 [T+1, B, A], Q(x_t, a) by the network that learns. T is static.
        target_q: float32 [T+1, B, A], Q'(x_t, a) by the target network.
        actions: int32 [T, B], a_t.
        rewards, discounts, valid, n: as `n_step_targets` takes them.
        rescaled: Q and Q' are h of the values.

    Returns:
        float32 [T, B], 0 where t -> t+1 is no transition.
    """
    num_actions = q.shape[2]
    greedy = tf.one_hot(tf.argmax(q, -1), num_actions)
    values = tf.reduce_sum(target_q * greedy, -1)
    targets = n_step_targets(
        rewards=rewards,
        discounts=discounts,
        values=unscale(values) if rescaled else values,
        valid=valid,
        n=n,
    )
    taken = tf.reduce_sum(q[:-1] * tf.one_hot(actions, num_actions), -1)
    return masked((rescale(targets) if rescaled else targets) - taken, valid)


def n_step_targets(
    *, rewards: Tensor, discounts: Tensor, values: Tensor, valid: Tensor, n: int
) -> Tensor:
    """G_t = r_{t+1} + gamma_{t+1} r_{t+2} + ... + gamma_{t+1} ... gamma_{t+n} V(x_{t+n}).

    Sutton and Barto 2018, equation 7.1; near the end of the sequence, and of an episode that was
    truncated in it, the sum is as long as there are rewards and bootstraps from the last row. After a
    row that terminated its episode nothing is added, since its discount is 0. Where t -> t+1 is no
    transition the target is V(x_t), and nothing else that stands there has any influence.

    Args:
        rewards: float32 [T, B], r_{t+1} of the transition t -> t+1. T is static.
        discounts: float32 [T, B], gamma_{t+1}: 0 if the transition terminated the episode.
        values: float32 [T+1, B], V(x_t) to bootstrap from.
        valid: bool [T, B], False where t -> t+1 is no transition.
        n: at least 1.

    Returns:
        float32 [T, B], through which no gradient flows.

    Raises:
        ValueError: the shapes do not fit together, or n is less than 1.
    """
    _check(rewards, discounts, values, valid, n)
    values = tf.stop_gradient(values)
    targets = values
    for _ in range(min(n, rewards.shape[0])):
        # One reward longer each time; the last row has none, and bootstraps from itself.
        longer = tf.where(valid, rewards + discounts * targets[1:], values[:-1])
        targets = tf.concat([longer, values[-1:]], 0)
    return tf.stop_gradient(targets[:-1])


def _check(rewards: Tensor, discounts: Tensor, values: Tensor, valid: Tensor, n: int) -> None:
    shape = rewards.shape
    same = all(x.shape.is_compatible_with(shape) for x in (discounts, valid))
    if shape.rank != 2 or shape[0] is None or not same:
        raise ValueError(
            f"n_step_targets: expected rewards, discounts and valid of one shape [T, B] with a static "
            f"T, found {shape}, {discounts.shape} and {valid.shape}"
        )
    if not values.shape.is_compatible_with([shape[0] + 1, shape[1]]):
        raise ValueError(
            f"n_step_targets: expected values of [{shape[0] + 1}, {shape[1]}], found {values.shape}"
        )
    if n < 1:
        raise ValueError(f"n_step_targets: expected n of at least 1, found {n}")
