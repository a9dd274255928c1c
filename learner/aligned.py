"""Arrays that TensorFlow can take over as they are, without a copy."""

import math

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
"""Bytes that TensorFlow aligns its tensors to; its operations abort the process for others."""


def aligned_zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
    """As `np.zeros(shape, dtype)`, at an address that TensorFlow takes over."""
    dtype = np.dtype(dtype)
    memory = np.zeros(math.prod(shape) * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % ALIGNMENT
    return np.ndarray(shape, dtype, memory, start)
