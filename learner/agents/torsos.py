"""From observations to features: the MLP, and IMPALA's shallow and deep convolutions."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from learner.agents.layers import Conv, Dense, Variables, prefixed
from learner.agents.memory import Frames
from learner.agents.shapes import reshaped
from learner.experience.trajectory import Tensor
from protos.specs import ArraySpec

PIXEL_SCALE = 1.0 / 255.0
SHALLOW_MINIMUM = 20
"""Least height and width of an image for the shallow torso: two convolutions without padding."""


def is_image(leaf: ArraySpec) -> bool:
    """Whether the leaf is a numeric uint8 array of rank 3."""
    return leaf.dtype == np.uint8 and len(leaf.shape) == 3 and not leaf.categorical


def channels_first(shape: Sequence[int]) -> bool:
    """Whether an image's first dimension is its channels: it is smaller than both others."""
    return shape[0] < min(shape[1:])


def image_size(shape: Sequence[int]) -> tuple[int, int, int]:
    """Height, width and channels of an image, whichever way it lies."""
    channels, height, width = shape if channels_first(shape) else (shape[2], *shape[:2])
    return height, width, channels


class ImageTorso(Protocol):
    """Convolutions over stacked images."""

    features: int
    variables: Variables

    def __call__(self, frames: Frames) -> Tensor:
        """float32 [T * B, features]."""
        ...


class Shallow:
    """Espeholt et al. 2018, figure 3 left: convolutions 16 of 8x8/4 and 32 of 4x4/2, dense 256."""

    def __init__(self, shape: tuple[int, ...], depth: int, rng: np.random.Generator) -> None:
        height, width, channels = image_size(shape)
        self._channels_first = channels_first(shape)
        self._depth = depth
        self._first = Conv(channels * depth, 16, rng, size=8, stride=4, activation="relu")
        self._second = Conv(16, 32, rng, size=4, stride=2, activation="relu")
        self._flat = 32 * _second_size(height) * _second_size(width)
        self._dense = Dense(self._flat, 256, rng)
        self.features = 256
        self.variables: Variables = (
            prefixed("conv_0", self._first.variables)
            | prefixed("conv_1", self._second.variables)
            | prefixed("dense", self._dense.variables)
        )

    def __call__(self, frames: Frames) -> Tensor:
        # Without a stack, pixels are converted once and not `depth` times, and are more often found
        # in the cache. The few rows behind an episode's start are computed again, with a stack.
        features = self._features(frames.images)
        if frames.whole is None:
            return features

        def repaired() -> Tensor:
            rows, stacks = frames.broken()
            return tf.tensor_scatter_nd_update(features, rows, self._features(stacks))

        return tf.cond(frames.whole, lambda: features, repaired)

    def _features(self, images: Tensor) -> Tensor:
        """float32 [steps * N, 256] of uint8 [N, steps + depth - 1, *shape]."""
        depth, step = self._depth, 1
        if self._channels_first:
            # One image with its channels first is as many images of one channel.
            step = images.shape[2]
            depth *= step
            images = tf.reshape(images, [-1, images.shape[1] * step, *images.shape[3:], 1])
        x = self._first.windows(images, depth, step, PIXEL_SCALE)
        steps = x.shape[1]
        x = self._second(tf.reshape(x, [-1, *x.shape[2:]]))
        x = tf.nn.relu(self._dense(tf.reshape(x, [-1, self._flat])))
        return tf.reshape(tf.transpose(tf.reshape(x, [-1, steps, 256]), [1, 0, 2]), [-1, 256])


class Deep:
    """Espeholt et al. 2018, figure 3 right: a residual network of 15 convolutions, dense 256."""

    def __init__(self, shape: tuple[int, ...], depth: int, rng: np.random.Generator) -> None:
        height, width, channels = image_size(shape)
        self._channels_first = channels_first(shape)
        self._sections: list[list[Conv]] = []
        self.variables: Variables = {}
        inputs = channels * depth
        for s, filters in enumerate((16, 32, 32)):
            sizes = [inputs, *[filters] * 4]
            section = [Conv(n, filters, rng, size=3, padding="same") for n in sizes]
            for i, conv in enumerate(section):
                self.variables |= prefixed(f"section_{s}/conv_{i}", conv.variables)
            self._sections.append(section)
            inputs, height, width = filters, -(-height // 2), -(-width // 2)
        self._flat = inputs * height * width
        self._dense = Dense(self._flat, 256, rng)
        self.features = 256
        self.variables |= prefixed("dense", self._dense.variables)

    def __call__(self, frames: Frames) -> Tensor:
        # Interleaved, other than in Shallow: with a stride of 1 there are no columns to make vectors
        # of, and this convolution is a small part of the network.
        order = [0, 3, 4, 1, 2] if self._channels_first else [0, 2, 3, 1, 4]
        x = tf.cast(_interleaved(frames.stacks(), order), tf.float32) * PIXEL_SCALE
        for conv, *residual in self._sections:
            x = tf.nn.max_pool2d(conv(x), 3, 2, "SAME")
            for above, below in (residual[:2], residual[2:]):
                x += below(tf.nn.relu(above(tf.nn.relu(x))))
        return tf.nn.relu(self._dense(tf.reshape(tf.nn.relu(x), [-1, self._flat])))


class Mlp:
    """Dense layers, with tanh by the custom for small control tasks."""

    def __init__(
        self,
        inputs: int,
        sizes: Sequence[int],
        rng: np.random.Generator,
        activation: str = "tanh",
    ) -> None:
        self._layers: list[Dense] = []
        self.variables: Variables = {}
        for i, size in enumerate(sizes):
            layer = Dense(inputs, size, rng, activation=activation)
            self._layers.append(layer)
            self.variables |= prefixed(f"dense_{i}", layer.variables)
            inputs = size
        self.features = inputs

    def __call__(self, x: Tensor) -> Tensor:
        for layer in self._layers:
            x = layer(x)
        return x


def vector_size(leaf: ArraySpec, depth: int) -> int:
    """Length of `vector` for one row."""
    if leaf.categorical:
        return leaf.num_elements * int(leaf.num_categories.max())
    return leaf.num_elements * (depth if is_image(leaf) else 1)


def vector(leaf: ArraySpec, value: Tensor | Frames) -> Tensor:
    """One leaf of N rows as float32 [N, vector_size]: categories one-hot, uint8 scaled to 0..1."""
    if isinstance(value, Frames):
        stacks = value.stacks()
        size = vector_size(leaf, stacks.shape[1])
        x = tf.reshape(_interleaved(stacks, [0, 2, 3, 1, 4]), [-1, size])
        return tf.cast(x, tf.float32) * PIXEL_SCALE
    if leaf.categorical:
        assert leaf.minimum is not None
        index = tf.cast(value, tf.int64) - leaf.minimum.astype(np.int64)
        hot = tf.one_hot(index, int(leaf.num_categories.max()))
        return tf.reshape(hot, [-1, vector_size(leaf, 1)])
    x = reshaped(tf.cast(value, tf.float32), [-1, leaf.num_elements])
    return x * PIXEL_SCALE if leaf.dtype == np.uint8 else x


def _interleaved(stack: Tensor, order: Sequence[int]) -> Tensor:
    """A stack of rank 5 in this order of dimensions, and its last two as one."""
    x = tf.transpose(stack, order)
    return tf.reshape(x, [-1, *x.shape[1:3], x.shape[3] * x.shape[4]])


def _second_size(length: int) -> int:
    """What two convolutions without padding, 8/4 and 4/2, leave of a height or width."""
    return (((length - 8) // 4 + 1) - 4) // 2 + 1
