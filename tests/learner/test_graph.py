"""Traced functions, and the tensors that they are called with."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from learner.aligned import aligned_zeros
from learner.graph import Graph, shared_tensor

INTEGERS = ["uint8", "int8", "uint16", "int16", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float16", "float32", "float64"]


def aligned(array: np.ndarray) -> np.ndarray:
    copy = aligned_zeros(array.shape, array.dtype)
    copy[...] = array
    return copy


@pytest.mark.parametrize("dtype", INTEGERS + FLOATS)
@pytest.mark.parametrize("shape", [(), (3,), (1, 1), (4, 0), (2, 3, 5)])
def test_a_shared_tensor_is_the_array(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.asarray(np.random.default_rng(0).uniform(0, 100, shape)).astype(dtype)
    tensor = shared_tensor(aligned(array))
    assert tensor.dtype == dtype
    np.testing.assert_array_equal(tensor.numpy(), array, strict=True)


def test_a_shared_tensor_of_the_first_rows_shows_what_is_written_there() -> None:
    array = aligned_zeros((4, 6), np.float32)
    tensor = shared_tensor(array[:2])
    array[:] = np.arange(24).reshape(4, 6)
    np.testing.assert_array_equal(tensor.numpy(), np.arange(12).reshape(2, 6))


def test_a_shared_tensor_keeps_the_memory() -> None:
    tensors = [shared_tensor(aligned(np.full(1000, number))) for number in range(100)]
    assert [int(tensor[-1]) for tensor in tensors] == list(range(100))


def test_no_tensor_is_made_that_operations_would_abort_for() -> None:
    with pytest.raises(AssertionError, match="abort"):
        shared_tensor(aligned_zeros((20,), np.int32)[1:])


@pytest.mark.parametrize("pack", [lambda y, z: {"b": y, "a": z}, lambda y, z: (y, [z])])
def test_a_graph_gives_the_functions_own_structure(pack: Any) -> None:
    graph = Graph(lambda x: pack(x + 1, 2 * x), tf.TensorSpec((None,), tf.int32))
    found = graph(tf.constant([1, 2]))
    expected = pack(np.array([2, 3]), np.array([2, 4]))
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)
