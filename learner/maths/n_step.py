"""What a window of experience says of its first transition: n rewards, then a bootstrap."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

Tensor = Any


class NStep(NamedTuple):
    """The target is returns + discounts V(x_rows)."""

    returns: Tensor
    """float32 [B]: r_1 + gamma r_2 + ... of the rewards before the bootstrap."""
    discounts: Tensor
    """float32 [B]: gamma^n; 0 where the episode terminated before, so that nothing follows."""
    rows: Tensor
    """int32 [B]: the row to bootstrap from."""
    valid: Tensor
    """bool [B]: whether the window's first pair of rows is a transition at all."""


def n_step(rewards: Tensor, terminated: Tensor, truncated: Tensor, discount: float) -> NStep:
    """n-step returns from row 0 (Sutton and Barto 2018, equation 7.1), cut where the episode ends.

    A truncated episode bootstraps from its own last row, which is the row before the next episode's.

    Args:
        rewards: float32 [n+1, B], n static; row 0's belongs to an earlier transition and is not read.
        terminated, truncated: bool [n+1, B]: the row is its episode's last.
        discount: gamma.

    Raises:
        ValueError: fewer than two rows.
    """
    length = rewards.shape[0]
    if length < 2:
        raise ValueError(f"expected at least 2 rows, found {length}")
    valid = ~(terminated[0] | truncated[0])
    going = valid
    returns, discounts = tf.zeros_like(rewards[0]), tf.ones_like(rewards[0])
    rows = tf.zeros_like(valid, tf.int32)
    for t in range(1, length):
        returns += tf.where(going, discounts * rewards[t], 0.0)
        factor = discount * (1.0 - tf.cast(terminated[t], tf.float32))
        discounts = tf.where(going, factor * discounts, discounts)
        rows = tf.where(going, t, rows)
        going = going & ~(terminated[t] | truncated[t])
    return NStep(returns, discounts, rows, valid)


def take_rows(arrays: Sequence[Tensor], rows: Tensor) -> tuple[Any, ...]:
    """Row `rows[b]` of column b, [B, ...] each, of arrays [n+1, B, ...], n static."""
    if arrays[0].shape[0] == 2:
        # The bootstrap is from row 1 in every window that counts.
        return tuple(array[1] for array in arrays)
    index = tf.stack([rows, tf.range(tf.size(rows))], -1)
    return tuple(tf.gather_nd(array, index) for array in arrays)
