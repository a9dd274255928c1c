"""The reverse scan against the loop that it replaces."""

import numpy as np
import pytest
import tensorflow as tf

from learner.maths.scan import reverse_scan


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 128])
@pytest.mark.parametrize("trailing", [(), (3,), (2, 4)])
def test_equals_the_loop(length: int, trailing: tuple[int, ...]) -> None:
    rng = np.random.default_rng(length)
    inputs = rng.normal(size=(length, *trailing))
    decays = rng.uniform(0, 1.1, (length, *trailing))

    expected = np.zeros_like(inputs)
    following = np.zeros(trailing)
    for t in reversed(range(length)):
        following = expected[t] = inputs[t] + decays[t] * following

    found = reverse_scan(tf.constant(inputs), tf.constant(decays))
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


def test_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"found \(3, 2\) and \(4, 2\)"):
        reverse_scan(tf.zeros((3, 2)), tf.zeros((4, 2)))
