"""Arrays at addresses that TensorFlow takes over."""

import numpy as np
import pytest

from learner.aligned import ALIGNMENT, aligned_zeros


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "float64"])
@pytest.mark.parametrize("shape", [(), (3,), (4, 0), (2, 3, 5)])
def test_they_are_zeros_wherever_memory_begins(dtype: str, shape: tuple[int, ...]) -> None:
    arrays = [aligned_zeros(shape, dtype) for _ in range(20)]
    for array in arrays:
        np.testing.assert_array_equal(array, np.zeros(shape, dtype), strict=True)
        assert array.flags.c_contiguous
        assert array.__array_interface__["data"][0] % ALIGNMENT == 0
        # Each has memory of its own.
        array[...] = 1
