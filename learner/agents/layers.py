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
from learner.memory_limit import require_memory

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
    """x [N, inputs] to activation(x W + b) [N, units].

    Raises:
        ConfigError: its weights cannot fit into memory.
    """

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
        # Its gradient and the copy that acts are as large as itself, and stand beside it where there is
        # no other device; from that, checkpoints bring it here.
        copies = 1 if tf.config.list_physical_devices("GPU") else 3
        require_memory(
            copies * 4 * inputs * units,
            f"a dense layer of {inputs} inputs and {units} units",
            "make observations smaller, or the network by --hidden-sizes, --torso or --frame-stack",
        )
        self._layer = keras.layers.Dense(
            units, activation=activation, kernel_initializer=orthogonal(rng, gain)
        )
        self._layer.build((None, inputs))
        self.variables: Variables = {"kernel": self._layer.kernel, "bias": self._layer.bias}

    def __call__(self, x: Tensor) -> Tensor:
        return self._layer(x)


class Conv:
    """NHWC images to activation(convolution + bias).

    It is computed over images of fewer, wider columns: `stride` columns of pixels count as one with
    `stride` times the channels, and the kernel is cut alike. That is the same sum, and the pixels
    stay where they are in memory; but it takes a CPU's convolution less time than a stride along the
    width does, most of all backward, and makes vectors of images with few channels.

    Raises:
        ValueError: the stride is not 1, and there is padding or the size is no multiple of it.
    """

    def __init__(
        self,
        channels: int,
        filters: int,
        rng: np.random.Generator,
        *,
        size: int,
        stride: int = 1,
        padding: str = "valid",
        activation: str | None = None,
    ) -> None:
        if stride > 1 and (padding != "valid" or size % stride):
            raise ValueError(
                f"expected a stride of 1, or a size that is a multiple of it and no padding; "
                f"found size {size}, stride {stride}, padding {padding!r}"
            )
        layer = keras.layers.Conv2D(
            filters, size, stride, padding, kernel_initializer=orthogonal(rng, RELU_GAIN)
        )
        layer.build((None, None, None, channels))
        self._size, self._stride, self._padding = size, stride, padding.upper()
        self._activation = keras.activations.get(activation)
        self.variables: Variables = {"kernel": layer.kernel, "bias": layer.bias}

    def __call__(self, x: Tensor) -> Tensor:
        """float32 [N, H', W', filters] from [N, H, W, channels]; H and W static."""
        kernel = self._kernel(1)[0]
        y = tf.nn.conv2d(self._columns(x), kernel, [1, self._stride, 1, 1], self._padding)
        return self._activate(y)

    def windows(self, images: Tensor, depth: int, step: int, scale: float) -> Tensor:
        """The convolution of scale * (stacks of `depth` successive images, along their channels).

        No such stack is made: the images stay behind each other and are the depth of a convolution in
        three dimensions. The scale goes into the kernel, where it costs nothing. Without padding only.

        Args:
            images: uint8 [N, length, H, W, C] with depth * C channels; all but N static.
            depth: images in a stack.
            step: images from the first of a stack to the first of the next.
            scale: factor of every pixel.

        Returns:
            float32 [N, (length - depth) / step + 1, H', W', filters].
        """
        x = tf.cast(self._columns(images), tf.float32)
        y = tf.nn.conv3d(x, self._kernel(depth) * scale, [1, step, self._stride, 1, 1], "VALID")
        return self._activate(y)

    def _activate(self, y: Tensor) -> Tensor:
        # In this order, without a reshape between, TensorFlow makes one operation of all three.
        return self._activation(tf.nn.bias_add(y, self.variables["bias"].value))

    def _columns(self, x: Tensor) -> Tensor:
        """x [..., H, W, C] as [..., H, W // stride, stride * C]."""
        *leading, width, channels = x.shape
        count = width // self._stride
        # Columns beyond the last whole stride are read by no position of the kernel.
        x = x[..., : count * self._stride, :] if width % self._stride else x
        return tf.reshape(x, [-1, *leading[1:], count, self._stride * channels])

    def _kernel(self, depth: int) -> Tensor:
        """The kernel of `_columns`, its channels cut into `depth` images.

        [depth, size, size // stride, stride * channels / depth, filters].
        """
        kernel = self.variables["kernel"].value
        size, stride = self._size, self._stride
        channels, filters = kernel.shape[2] // depth, kernel.shape[3]
        cut = tf.reshape(kernel, [size, size // stride, stride, depth, channels, filters])
        cut = tf.transpose(cut, [3, 0, 1, 2, 4, 5])
        return tf.reshape(cut, [depth, size, size // stride, stride * channels, filters])


class Lstm:
    """Hochreiter and Schmidhuber 1997, with a forget gate whose bias starts at 1, or, given a horizon,
    at log U(1, horizon - 1).

    At a bias of 1 a cell forgets a quarter of what it holds at each step, and after 20 steps nothing is
    left to learn from. With the other, lifetimes are spread over the horizon (Tallec and Ollivier 2018,
    "Can recurrent neural networks warp time?", section 3; but the input gate's bias stays 0, where the
    paper's makes long memories faint).

    Args:
        inputs: length of an input.
        units: cells.
        rng: decides the initial weights.
        horizon: steps that the cells remember at first; 0 for a bias of 1.
    """

    def __init__(self, inputs: int, units: int, rng: np.random.Generator, *, horizon: int = 0) -> None:
        self.units = units
        # Keras's cell holds the variables; stepping it would project the inputs step by step.
        self._cell = keras.layers.LSTMCell(
            units,
            kernel_initializer=orthogonal(rng, 1.0),
            recurrent_initializer=orthogonal(rng, 1.0),
        )
        self._cell.build((None, inputs))
        if horizon:
            bias = np.zeros(4 * units, np.float32)
            bias[units : 2 * units] = np.log(rng.uniform(1.0, horizon - 1.0, units))
            self._cell.bias.assign(bias)
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
