"""Shapes without operations of their own: a small policy's call is made of such trifles."""

from collections.abc import Sequence

import tensorflow as tf

from learner.experience.trajectory import Tensor


def with_leading_of(like: Tensor, x: Tensor, shape: Sequence[int]) -> Tensor:
    """x as [..., *shape] with the leading dimensions of `like` [..., n]."""
    leading = [-1 if size is None else size for size in like.shape[:-1]]
    if leading.count(-1) > 1:
        return tf.reshape(x, tf.concat([tf.shape(like)[:-1], shape], 0))
    return reshaped(x, [*leading, *shape])


def reshaped(x: Tensor, shape: Sequence[int]) -> Tensor:
    """`tf.reshape`, but for what has this shape already."""
    known = [-1 if size is None else size for size in x.shape]
    return x if known == list(shape) else tf.reshape(x, shape)
