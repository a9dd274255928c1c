"""Means and values over the transitions alone, of arrays in which some pairs of rows are none."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

Tensor = Any


def masked(x: Tensor, valid: Tensor) -> Tensor:
    """x [T, B, ...] where `valid` bool [T, B], and 0 elsewhere, whatever stands there (NaN too)."""
    mask = tf.reshape(valid, tf.concat([tf.shape(valid), [1] * (len(x.shape) - 2)], 0))
    return tf.where(mask, x, tf.zeros_like(x))


def masked_mean(x: Tensor, valid: Tensor) -> Tensor:
    """Mean of x [T, B] where `valid` bool [T, B]; 0 if that is nowhere."""
    count = tf.reduce_sum(tf.cast(valid, x.dtype))
    return masked_sum(x, valid) / tf.maximum(count, 1.0)


def masked_sum(x: Tensor, valid: Tensor) -> Tensor:
    """Sum of x [T, B] where `valid` bool [T, B]."""
    return tf.reduce_sum(masked(x, valid))


def standardized(
    x: Tensor,
    valid: Tensor,
    epsilon: float = 1e-8,
    *,
    mean: Callable[[Tensor, Tensor], Tensor] = masked_mean,
) -> Tensor:
    """x [T, B] less its mean, divided by its standard deviation (+ epsilon), both where `valid`.

    0 elsewhere; all 0 where fewer than two are valid, since one value says nothing of a spread.
    `mean` is of more than x where x is a part.
    """
    centred = masked(x - mean(x, valid), valid)
    return centred / (tf.sqrt(mean(tf.square(centred), valid)) + epsilon)
