"""Frame stacks against the obvious loop."""

import numpy as np
import pytest
import tensorflow as tf

from learner.agents.memory import Frames, FrameStack
from protos.specs import ArraySpec
from tests import reference

SHAPE = (3, 2, 2)
LEAF = ArraySpec("", SHAPE, np.dtype(np.uint8))


def materialize(frames: Frames) -> np.ndarray:
    """[N, k, *shape], with what the masks say is black."""
    images = [
        image.numpy() if mask is None else image.numpy() * mask.numpy()[:, None, None, None]
        for image, mask in zip(frames.images, frames.masks, strict=True)
    ]
    return np.stack(images, 1)


def draw(length: int, batch: int, depth: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(length + depth)
    images = rng.integers(1, 256, (length, batch, *SHAPE), np.uint8)
    past = rng.integers(1, 256, (batch, depth - 1, *SHAPE), np.uint8)
    first = rng.random((length, batch)) < 0.3
    past[first[0]] = 0  # As serving hands it over: zeroed before row 0.
    return images, past, first


@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("length", [1, 2, 9])
def test_unroll_equals_the_loop(length: int, depth: int) -> None:
    images, past, first = draw(length, 6, depth)

    frames, after = FrameStack(LEAF, depth).unroll(
        tf.constant(images), tf.constant(first), tf.constant(past)
    )

    truth = reference.stack_frames(images, first, past)
    np.testing.assert_array_equal(materialize(frames), truth.reshape(-1, depth, *SHAPE))
    np.testing.assert_array_equal(after, truth[-1][:, 1:])


def test_step_by_step_equals_unroll() -> None:
    images, past, first = draw(7, 4, 4)
    stack = FrameStack(LEAF, 4)
    unrolled, after = stack.unroll(tf.constant(images), tf.constant(first), tf.constant(past))

    steps = []
    for t in range(7):
        past[first[t]] = 0
        frames, new_past = stack.step(tf.constant(images[t]), tf.constant(past))
        steps.append(materialize(frames))
        past = new_past.numpy()

    np.testing.assert_array_equal(np.concatenate(steps), materialize(unrolled))
    np.testing.assert_array_equal(past, after)


def test_one_image_needs_no_memory() -> None:
    stack = FrameStack(LEAF, 1)
    images, _, first = draw(3, 2, 1)

    frames, after = stack.unroll(tf.constant(images), tf.constant(first), None)

    assert stack.state_spec is None
    assert after is None
    np.testing.assert_array_equal(materialize(frames)[:, 0], images.reshape(-1, *SHAPE))


def test_the_memory_is_bytes() -> None:
    assert FrameStack(LEAF, 4).state_spec == tf.TensorSpec((3, *SHAPE), tf.uint8)
