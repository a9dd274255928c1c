"""Means over transitions alone, against NumPy's boolean indexing."""

import numpy as np
import pytest
import tensorflow as tf

from learner.maths.masks import masked, masked_mean, standardized


def draw(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(3, 2, (7, 4)).astype(np.float32), rng.random((7, 4)) > 0.4


def test_masked_keeps_what_is_valid_in_any_rank() -> None:
    x, valid = draw(0)
    deep = np.stack([x, 2 * x], -1)
    deep[~valid] = np.nan

    truth = np.where(valid[..., None], deep, 0)
    np.testing.assert_array_equal(masked(tf.constant(deep), tf.constant(valid)), truth)
    np.testing.assert_array_equal(masked(tf.constant(x), tf.constant(valid)), np.where(valid, x, 0))


def test_masked_mean_is_that_of_what_is_valid() -> None:
    x, valid = draw(1)
    x[~valid] = np.nan

    assert float(masked_mean(tf.constant(x), tf.constant(valid))) == pytest.approx(x[valid].mean())
    assert float(masked_mean(tf.constant(x), tf.zeros((7, 4), tf.bool))) == 0


def test_standardized_has_mean_0_and_variance_1_where_valid() -> None:
    x, valid = draw(2)
    truth = np.where(valid, (x - x[valid].mean()) / x[valid].std(), 0)
    x[~valid] = np.inf

    found = standardized(tf.constant(x), tf.constant(valid)).numpy()

    np.testing.assert_allclose(found, truth, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [0, 1])
def test_standardized_of_too_few_is_0(count: int) -> None:
    valid = np.zeros((3, 2), bool)
    valid.ravel()[:count] = True

    found = standardized(tf.constant(np.full((3, 2), 5.0, np.float32)), tf.constant(valid))

    np.testing.assert_array_equal(found, 0)
