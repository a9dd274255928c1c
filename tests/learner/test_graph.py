"""Traced functions, and the tensors that they are called with."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from learner.graph import ALIGNMENT, Graph, host_tensor

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float16", "float32", "float64"]


@pytest.mark.parametrize("dtype", DTYPES + FLOATS)
@pytest.mark.parametrize("shape", [(), (3,), (1, 1), (4, 0), (2, 3, 5)])
def test_a_host_tensor_is_the_array(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.asarray(np.random.default_rng(0).uniform(0, 100, shape)).astype(dtype)
    tensor = host_tensor(array)
    assert tensor.dtype == dtype
    np.testing.assert_array_equal(tensor.numpy(), array, strict=True)


def test_a_host_tensor_of_a_part_is_that_part() -> None:
    array = np.arange(24).reshape(4, 6)
    np.testing.assert_array_equal(host_tensor(array[1:, 2:4]), array[1:, 2:4])


def test_a_host_tensor_keeps_its_values_while_the_array_gets_others() -> None:
    array = np.zeros(100, np.float32)
    tensor = host_tensor(array)
    array[:] = 1
    assert not tensor.numpy().any()


def test_host_tensors_are_aligned_as_operations_expect() -> None:
    room = np.zeros(200, np.uint8)
    for start in range(1, 100, 8):
        shared = np.frombuffer(memoryview(host_tensor(room[start:])), np.uint8)
        assert shared.__array_interface__["data"][0] % ALIGNMENT == 0


@pytest.mark.parametrize("pack", [lambda y, z: {"b": y, "a": z}, lambda y, z: (y, [z])])
def test_a_graph_gives_the_functions_own_structure(pack: Any) -> None:
    graph = Graph(lambda x: pack(x + 1, 2 * x), tf.TensorSpec((None,), tf.int32))
    found = graph(host_tensor(np.array([1, 2], np.int32)))
    expected = pack(np.array([2, 3]), np.array([2, 4]))
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)
