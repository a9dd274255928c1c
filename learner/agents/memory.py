"""Frame stacking as part of a policy's memory: an actor sends each image once."""

from typing import Any, NamedTuple

import tensorflow as tf

from learner.experience.trajectory import Tensor
from protos.specs import ArraySpec


class Frames(NamedTuple):
    """The newest k images of N rows, oldest first, as parts: nothing is interleaved or copied yet."""

    images: list[Tensor]
    """float32 [N, *shape] each, unscaled (0 to 255)."""
    masks: list[Tensor | None]
    """float32 [N] each: 0 where the image is of an earlier episode, so black; None if it never is."""


class FrameStack:
    """Remembers the depth - 1 images before the present one; black before an episode's first.

    The memory is uint8 [B, depth - 1, *shape], newest last, and zeros at an episode's start.
    """

    def __init__(self, spec: ArraySpec, depth: int) -> None:
        self._shape = spec.shape
        self.depth = depth

    @property
    def state_spec(self) -> Any:
        """tf.TensorSpec of the memory of one environment; None if one image is all there is."""
        return tf.TensorSpec((self.depth - 1, *self._shape), tf.uint8) if self.depth > 1 else None

    def step(self, image: Tensor, past: Tensor | None) -> tuple[Frames, Tensor | None]:
        """The stack of one step.

        Args:
            image: uint8 [B, *shape].
            past: the memory, zeroed already where an episode starts.

        Returns:
            The stack of B rows, and the next memory.
        """
        if past is None:
            return Frames([tf.cast(image, tf.float32)], [None]), None
        images = [*tf.unstack(past, axis=1), image]
        past = tf.concat([past[:, 1:], image[:, None]], 1)
        return Frames([tf.cast(x, tf.float32) for x in images], [None] * self.depth), past

    def unroll(self, images: Tensor, first: Tensor, past: Tensor | None) -> tuple[Frames, Tensor | None]:
        """The stacks of all steps of an unroll.

        Args:
            images: uint8 [T, B, *shape], T static.
            first: bool [T, B], first row of an episode.
            past: the memory before row 0.

        Returns:
            The stacks of T * B rows, and the memory after the last.
        """
        if past is None:
            return Frames([_rows(tf.cast(images, tf.float32))], [None]), None
        length = images.shape[0]
        line = tf.concat([tf.stack(tf.unstack(past, axis=1)), images], 0)
        masks = self._masks(first)
        # Converted once, although every image stands in `depth` stacks. Slices along the first
        # dimension are views.
        floats = tf.cast(line, tf.float32)
        stack = [_rows(floats[i : i + length]) for i in range(self.depth)]
        flat = [None if mask is None else tf.reshape(mask, [-1]) for mask in masks]
        return Frames(stack, flat), self._after(line[length:], masks[1:])

    def _masks(self, first: Tensor) -> list[Tensor | None]:
        """[T, B] for each image of the stack, oldest first: 1 if no episode began after it.

        Images before row 0 need no mask for what began before row 0: the memory is zeroed by then.
        """
        keep = 1.0 - tf.cast(first, tf.float32)
        masks: list[Tensor | None] = [None]
        mask = keep
        for lag in range(1, self.depth):
            masks.append(mask)
            mask = mask * tf.concat([tf.ones_like(keep[:lag]), keep[:-lag]], 0)[: keep.shape[0]]
        return masks[::-1]

    def _after(self, images: Tensor, masks: list[Tensor | None]) -> Tensor:
        """The memory [B, depth - 1, ...] from the newest images [depth - 1, B, ...]."""
        rows = [
            image if mask is None else image * _like(tf.cast(mask[-1], tf.uint8), image)
            for image, mask in zip(tf.unstack(images), masks, strict=True)
        ]
        return tf.stack(rows, 1)


def _rows(x: Tensor) -> Tensor:
    """[T, B, ...] as [T * B, ...]."""
    return tf.reshape(x, [-1, *x.shape[2:]])


def _like(mask: Tensor, x: Tensor) -> Tensor:
    """mask [B], made to multiply x [B, ...]."""
    return tf.reshape(mask, [-1] + [1] * (len(x.shape) - 1))
