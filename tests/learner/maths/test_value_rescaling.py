"""Value rescaling against the paper's formulas, rlax, and its own inverse."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from learner.maths.value_rescaling import rescale, unscale
from tests import reference

RLAX = Path(__file__).parents[2] / "data" / "rlax_q_values.npz"

VALUES = np.concatenate([-np.logspace(4, -6, 30), [0.0], np.logspace(-6, 4, 30)])


def test_equals_the_paper() -> None:
    x = tf.constant(VALUES, tf.float32)
    np.testing.assert_allclose(rescale(x), reference.rescale_value(VALUES), rtol=3e-6)
    y = VALUES[np.abs(VALUES) < 300]
    np.testing.assert_allclose(
        unscale(tf.constant(y, tf.float32)), reference.unscale_value(y), rtol=3e-6, atol=1e-9
    )


def test_equals_rlax() -> None:
    with np.load(RLAX) as stored:
        x, rescaled = stored["rescaling/x"], stored["rescaling/rescaled"]
        unscaled = stored["rescaling/unscaled_of_a_20th"]
    np.testing.assert_allclose(rescale(tf.constant(x, tf.float32)), rescaled, rtol=1e-5)
    np.testing.assert_allclose(unscale(tf.constant(x / 20, tf.float32)), unscaled, rtol=1e-5, atol=1e-7)


def test_is_its_inverse_to_float32s_last_digits() -> None:
    x = tf.constant(VALUES, tf.float32)
    np.testing.assert_allclose(unscale(rescale(x)), x, rtol=3e-6)
    # The formula as it stands loses three digits, most of all near 0.
    root = tf.sqrt(1 + 4e-3 * (tf.abs(rescale(x)) + 1.001))
    plain = tf.sign(x) * (tf.square((root - 1) / 2e-3) - 1)
    small = np.abs(VALUES) < 1e-3
    assert not np.allclose(plain.numpy()[small], VALUES[small], rtol=1e-2, atol=0)


def test_is_odd_and_grows() -> None:
    y = rescale(tf.constant(VALUES, tf.float32)).numpy()
    assert (np.diff(y) > 0).all()
    np.testing.assert_array_equal(y, -y[::-1])


@pytest.mark.parametrize("function", [rescale, unscale])
def test_has_a_gradient_everywhere(function: object) -> None:
    x = tf.Variable(VALUES, dtype=tf.float32)
    with tf.GradientTape() as tape:
        y = function(x)  # type: ignore[operator]
    gradient = tape.gradient(y, x).numpy()
    assert np.isfinite(gradient).all()
    assert (gradient[VALUES != 0] > 0).all()
