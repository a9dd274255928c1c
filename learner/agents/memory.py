"""Frame stacking as part of a policy's memory: an actor sends each image once."""

from typing import Any, NamedTuple

import tensorflow as tf

from learner.experience.trajectory import Tensor
from protos.specs import ArraySpec


class Frames(NamedTuple):
    """The images of T steps of B environments, and how to stack them; nothing is stacked yet."""

    images: Tensor
    """uint8 [B, T + depth - 1, *shape]: each environment's, those before row 0 first. If `whole`, the
    stack of step t is images t to t + depth - 1."""
    whole: Tensor | None = None
    """bool scalar: no episode starts within any stack. None: none ever can."""
    sources: Tensor | None = None
    """int32 [T, B, depth]: which of black and the flattened `images` make up each stack. None: all of
    `images` are one stack, T is 1."""

    def stacks(self) -> Tensor:
        """uint8 [T * B, depth, *shape], oldest image first; black before an episode's first."""
        if self.sources is None:
            return self.images
        return self._gather(tf.reshape(self.sources, [-1, self.sources.shape[2]]))

    def broken(self) -> tuple[Tensor, Tensor]:
        """The stacks within which an episode starts, and so the only ones that are not in `images`.

        Returns:
            Their rows among the T * B, int64 [n, 1], and the stacks, uint8 [n, depth, *shape].
        """
        assert self.sources is not None
        sources = tf.reshape(self.sources, [-1, self.sources.shape[2]])
        rows = tf.where(tf.reduce_any(sources == 0, -1))
        return rows, self._gather(tf.gather_nd(sources, rows))

    def memory(self) -> Tensor:
        """uint8 [B, depth - 1, *shape]: the newest images, as the stack of the next step needs them."""
        return self.images[:, 1:] if self.sources is None else self._gather(self.sources[-1, :, 1:])

    def _gather(self, sources: Tensor) -> Tensor:
        shape = self.images.shape[2:]
        black = tf.zeros([1, *shape], tf.uint8)
        return tf.gather(tf.concat([black, tf.reshape(self.images, [-1, *shape])], 0), sources)


class FrameStack:
    """Remembers the depth - 1 images before the present one; black before an episode's first.

    The memory is uint8 [B, depth - 1, *shape], newest last, and zeros at an episode's start. Images
    lie whole behind each other, so that putting them together copies a few large pieces of memory:
    interleaving them pixel by pixel, as channels of one image, costs a CPU nearly as much as the
    convolution that reads them.
    """

    def __init__(self, spec: ArraySpec, depth: int) -> None:
        self._shape = spec.shape
        self.depth = depth

    @property
    def state_spec(self) -> Any:
        """tf.TensorSpec of the memory of one environment; None if one image is all there is."""
        return tf.TensorSpec((self.depth - 1, *self._shape), tf.uint8) if self.depth > 1 else None

    def step(self, image: Tensor, past: Tensor | None) -> Frames:
        """The stacks of one step.

        Args:
            image: uint8 [B, *shape].
            past: the memory, zeroed already where an episode starts.
        """
        if past is None:
            return Frames(image[:, None])
        return Frames(tf.concat([past, image[:, None]], 1))

    def unroll(self, images: Tensor, first: Tensor, past: Tensor | None) -> Frames:
        """The stacks of all steps of an unroll.

        Args:
            images: uint8 [T, B, *shape], T static.
            first: bool [T, B], first row of an episode.
            past: the memory before row 0, zeroed already where row 0 starts an episode.
        """
        if past is None:
            # Stacks of one image have nothing to do with each other: T * B environments of one step.
            return Frames(tf.reshape(images, [-1, 1, *self._shape]))
        # What begins at row 0, the memory knows already.
        first = tf.concat([tf.zeros_like(first[:1]), first[1:]], 0)
        by_environment = tf.transpose(images, [1, 0, *range(2, len(images.shape))])
        return Frames(tf.concat([past, by_environment], 1), ~tf.reduce_any(first), self._sources(first))

    def _sources(self, first: Tensor) -> Tensor:
        """`Frames.sources`. Black is chosen by its number: masks would take a pass over all images."""
        length, batch = first.shape[0], tf.shape(first)[1]
        begin = 1 + tf.range(batch) * (length + self.depth - 1)
        newest = begin + tf.range(length)[:, None] + self.depth - 1
        same_episode = tf.ones_like(first)
        sources = [newest]
        for lag in range(1, self.depth):
            same_episode &= ~_delayed(first, lag - 1)
            sources.append(tf.where(same_episode, newest - lag, 0))
        return tf.stack(sources[::-1], -1)


def _delayed(x: Tensor, steps: int) -> Tensor:
    """bool x [T, B], `steps` later; False before."""
    return tf.concat([tf.zeros_like(x[:steps]), x[: max(x.shape[0] - steps, 0)]], 0)
