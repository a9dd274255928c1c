"""The invertible value rescaling of Pohlen et al. 2018, "Observe and look further"
(https://arxiv.org/abs/1805.11593, proposition A.2), as R2D2 uses it."""

from typing import Any

import tensorflow as tf

Tensor = Any

EPSILON = 1e-3
"""Slope that keeps the inverse Lipschitz; the value of both papers."""


def rescale(x: Tensor) -> Tensor:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x, elementwise."""
    magnitude = tf.abs(x)
    # sqrt(1 + m) - 1 without the difference, in which small values would lose their digits.
    return x / (tf.sqrt(magnitude + 1.0) + 1.0) + EPSILON * x


def unscale(y: Tensor) -> Tensor:
    """h^-1(y) = sign(y) (((sqrt(1 + 4 epsilon (|y| + 1 + epsilon)) - 1) / (2 epsilon))^2 - 1).

    float32 has too few digits for the formula as it stands: dividing what is left of the difference by
    epsilon costs three of them. The root minus 1 is rewritten as u / (root + 1), and the square minus 1
    as a product, whose small factor is a difference of small numbers.
    """
    magnitude = tf.abs(y)
    root = tf.sqrt(1.0 + 4.0 * EPSILON * (magnitude + 1.0 + EPSILON))
    # At y = 0 the root is 1 + 2 epsilon; this is how far it is above that.
    excess = 4.0 * EPSILON * magnitude / (root + 1.0 + 2.0 * EPSILON)
    # (root - 1) / (2 epsilon) = 1 + z.
    z = excess / (2.0 * EPSILON)
    return tf.sign(y) * z * (z + 2.0)
