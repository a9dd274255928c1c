"""Frame stacks against the obvious loop."""

import numpy as np
import pytest
import tensorflow as tf

from learner.agents.memory import FrameStack
from protos.specs import ArraySpec
from tests import reference

SHAPE = (3, 2, 2)
LEAF = ArraySpec("", SHAPE, np.dtype(np.uint8))


def draw(
    length: int, batch: int, depth: int, starts: float = 0.3
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(length + depth)
    images = rng.integers(1, 256, (length, batch, *SHAPE), np.uint8)
    past = rng.integers(1, 256, (batch, depth - 1, *SHAPE), np.uint8)
    first = rng.random((length, batch)) < starts
    past[first[0]] = 0  # As serving hands it over: zeroed before row 0.
    return images, past, first


@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("length", [1, 2, 9])
def test_unroll_equals_the_loop(length: int, depth: int) -> None:
    images, past, first = draw(length, 6, depth)

    frames = FrameStack(LEAF, depth).unroll(tf.constant(images), tf.constant(first), tf.constant(past))

    truth = reference.stack_frames(images, first, past)
    np.testing.assert_array_equal(frames.stacks(), truth.reshape(-1, depth, *SHAPE))
    np.testing.assert_array_equal(frames.memory(), truth[-1][:, 1:])


def test_step_by_step_equals_unroll() -> None:
    images, past, first = draw(7, 4, 4)
    stack = FrameStack(LEAF, 4)
    unrolled = stack.unroll(tf.constant(images), tf.constant(first), tf.constant(past))

    steps = []
    for t in range(7):
        past[first[t]] = 0
        frames = stack.step(tf.constant(images[t]), tf.constant(past))
        steps.append(frames.stacks().numpy())
        past = frames.memory().numpy()

    np.testing.assert_array_equal(np.concatenate(steps), unrolled.stacks())
    np.testing.assert_array_equal(past, unrolled.memory())


def test_stacks_within_an_episode_are_windows_of_the_images() -> None:
    images, past, first = draw(5, 2, 3, starts=0)
    first[0, 1], past[1] = True, 0  # What begins at row 0 breaks no stack.

    frames = FrameStack(LEAF, 3).unroll(tf.constant(images), tf.constant(first), tf.constant(past))

    assert frames.whole is not None
    assert frames.whole.numpy()
    windows = np.stack([frames.images[:, t : t + 3] for t in range(5)])
    np.testing.assert_array_equal(windows, reference.stack_frames(images, first, past))


def test_an_episodes_start_breaks_the_stacks_behind_it() -> None:
    images, past, first = draw(5, 2, 3, starts=0)
    first[[0, 1], [0, 1]], past[0] = True, 0

    frames = FrameStack(LEAF, 3).unroll(tf.constant(images), tf.constant(first), tf.constant(past))

    assert frames.whole is not None
    assert not frames.whole.numpy()
    rows, stacks = frames.broken()
    np.testing.assert_array_equal(rows[:, 0], [3, 5])  # Steps 1 and 2 of environment 1.
    truth = reference.stack_frames(images, first, past)
    np.testing.assert_array_equal(stacks, truth[1:3, 1])


def test_one_image_needs_no_memory() -> None:
    stack = FrameStack(LEAF, 1)
    images, _, first = draw(3, 2, 1)

    frames = stack.unroll(tf.constant(images), tf.constant(first), None)

    assert stack.state_spec is None
    assert frames.whole is None
    np.testing.assert_array_equal(frames.stacks()[:, 0], images.reshape(-1, *SHAPE))


def test_the_memory_is_bytes() -> None:
    assert FrameStack(LEAF, 4).state_spec == tf.TensorSpec((3, *SHAPE), tf.uint8)
