"""n-step returns of a window against a slow walk through it."""

import numpy as np
import pytest
import tensorflow as tf

from learner.maths.n_step import n_step, take_rows
from tests import reference


@pytest.mark.parametrize("length", [2, 3, 6])
def test_equals_a_walk_through_the_window(length: int) -> None:
    rng = np.random.default_rng(length)
    rewards = rng.normal(size=(length, 200)).astype(np.float32)
    last = rng.random((length, 200)) < 0.3
    truncated = last & (rng.random(last.shape) < 0.5)

    found = n_step(rewards, tf.constant(last & ~truncated), tf.constant(truncated), 0.9)

    truth = reference.n_step_window(rewards, last & ~truncated, truncated, 0.9)
    np.testing.assert_array_equal(found.valid, truth.valid)
    valid = truth.valid
    assert 0 < valid.sum() < len(valid)
    for name in ("returns", "discounts", "rows"):
        a, b = getattr(found, name).numpy()[valid], getattr(truth, name)[valid]
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_termination_has_no_bootstrap_and_a_truncation_has() -> None:
    rewards = np.array([[9, 9, 9], [1, 1, 1], [2, 2, 2]], np.float32)
    terminated = np.array([[0, 0, 0], [1, 0, 0], [0, 0, 0]], bool)
    truncated = np.array([[0, 0, 0], [0, 1, 0], [0, 0, 0]], bool)

    found = n_step(rewards, terminated, truncated, 0.5)

    np.testing.assert_array_equal(found.returns, [1, 1, 2])
    np.testing.assert_array_equal(found.discounts, [0, 0.5, 0.25])
    np.testing.assert_array_equal(found.rows, [1, 1, 2])


def test_nonsense_after_the_end_is_not_read() -> None:
    rewards = np.array([[np.nan, np.nan], [1, np.nan], [np.nan, np.nan]], np.float32)
    terminated = np.array([[0, 1], [1, 0], [0, 0]], bool)

    found = n_step(rewards, terminated, np.zeros_like(terminated), 0.5)

    np.testing.assert_array_equal(found.valid, [True, False])
    np.testing.assert_array_equal(found.returns, [1, 0])


def test_one_row_is_refused() -> None:
    flags = np.zeros((1, 2), bool)
    with pytest.raises(ValueError, match="expected at least 2 rows, found 1"):
        n_step(np.zeros((1, 2), np.float32), flags, flags, 0.9)


@pytest.mark.parametrize("length", [2, 4])
def test_take_rows_takes_each_window_s_own(length: int) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(length, 5, 3)), rng.integers(0, 9, (length, 5))]
    rows = np.full(5, 1) if length == 2 else rng.integers(0, length, 5)

    taken = take_rows([tf.constant(array) for array in arrays], tf.constant(rows, tf.int32))

    for array, found in zip(arrays, taken, strict=True):
        np.testing.assert_array_equal(found, [array[row, b] for b, row in enumerate(rows)])
