"""Dense, convolution and LSTM layers as actor-critics want them: orthogonal, seeded, stably named.

Keras holds the variables and their initialization; the names are ours, since Keras's own count
layers through the life of a process, and a checkpoint needs names that do not.
"""

import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from learner.experience.trajectory import Tensor

RELU_GAIN = math.sqrt(2.0)
"""Gain of orthogonal initialization that keeps the variance through a ReLU or tanh."""

Variables = dict[str, Any]
"""keras.Variable by name; the values (`.value`) are tf.Variables."""


def prefixed(prefix: str, variables: Mapping[str, Any]) -> Variables:
    """The same variables, by "prefix/name"."""
    return {f"{prefix}/{name}": variable for name, variable in variables.items()}


def orthogonal(rng: np.random.Generator, gain: float) -> Any:
    """An orthogonal initializer with a seed drawn from `rng`."""
    return keras.initializers.Orthogonal(gain, seed=int(rng.integers(2**31)))


class Dense:
    """x [N, inputs] to activation(x W + b) [N, units]."""

    def __init__(
        self,
        inputs: int,
        units: int,
        rng: np.random.Generator,
        *,
        gain: float = RELU_GAIN,
        activation: str | None = None,
    ) -> None:
        self.units = units
        self._layer = keras.layers.Dense(
            units, activation=activation, kernel_initializer=orthogonal(rng, gain)
        )
        self._layer.build((None, inputs))
        self.variables: Variables = {"kernel": self._layer.kernel, "bias": self._layer.bias}

    def __call__(self, x: Tensor) -> Tensor:
        return self._layer(x)


class Conv:
    """NHWC images to convolution plus bias, without activation."""

    def __init__(
        self,
        channels: int,
        filters: int,
        rng: np.random.Generator,
        *,
        size: int,
        stride: int = 1,
        padding: str = "valid",
    ) -> None:
        self._layer = keras.layers.Conv2D(
            filters, size, stride, padding, kernel_initializer=orthogonal(rng, RELU_GAIN)
        )
        self._layer.build((None, None, None, channels))
        self._stride, self._padding = stride, padding.upper()
        self.variables: Variables = {"kernel": self._layer.kernel, "bias": self._layer.bias}

    def __call__(self, x: Tensor) -> Tensor:
        return self._layer(x)

    def sum_over(self, images: list[Tensor], masks: list[Tensor | None], scale: float) -> Tensor:
        """The convolution of scale * (the images stacked along their channels), without the stack.

        A convolution is linear, so that of a stack is the sum of those of its images, each with its
        part of the kernel. That saves interleaving pixels, which on a CPU costs as much as the
        convolution, and lets the stacks of an unroll share their images; the scale goes into the
        kernel, where it costs nothing.

        Args:
            images: float32 [N, H, W, C] each.
            masks: float32 [N] each, 0 where the image is black, or None for nowhere.
            scale: factor of every pixel.
        """
        kernels = tf.split(self._layer.kernel * scale, len(images), 2)
        total = self._layer.bias
        for image, mask, kernel in zip(images, masks, kernels, strict=True):
            part = tf.nn.conv2d(image, kernel, self._stride, self._padding)
            total += part if mask is None else part * mask[:, None, None, None]
        return total


class Lstm:
    """Hochreiter and Schmidhuber 1997, with a forget gate whose bias starts at 1."""

    def __init__(self, inputs: int, units: int, rng: np.random.Generator) -> None:
        self.units = units
        # Keras's cell holds the variables; stepping it would project the inputs step by step.
        self._cell = keras.layers.LSTMCell(
            units,
            kernel_initializer=orthogonal(rng, 1.0),
            recurrent_initializer=orthogonal(rng, 1.0),
        )
        self._cell.build((None, inputs))
        self.variables: Variables = {
            "kernel": self._cell.kernel,
            "recurrent_kernel": self._cell.recurrent_kernel,
            "bias": self._cell.bias,
        }

    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """One step from x [B, inputs], h and c [B, units], to the next h and c."""
        return self._gates(self._project(x), h, c)

    def unroll(self, x: Tensor, keep: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All steps of x [T, B, inputs]; h and c are zeroed before step t where keep[t] is 0.

        Args:
            x: float32 [T, B, inputs], T static.
            keep: float32 [T, B], 1 to go on and 0 to start afresh.
            h, c: float32 [B, units] before step 0.

        Returns:
            h at every step [T, B, units], and the last h and c.
        """
        # One matrix product for all steps; only the recurrent one has to wait.
        projected = tf.unstack(self._project(x))
        outputs = []
        for z, mask in zip(projected, tf.unstack(keep[..., None]), strict=True):
            h, c = self._gates(z, h * mask, c * mask)
            outputs.append(h)
        return tf.stack(outputs), h, c

    def _project(self, x: Tensor) -> Tensor:
        return tf.tensordot(x, self._cell.kernel, 1) + self._cell.bias

    def _gates(self, z: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, candidate, o = tf.split(z + tf.matmul(h, self._cell.recurrent_kernel), 4, -1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(candidate)
        return tf.sigmoid(o) * tf.tanh(c), c
