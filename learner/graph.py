"""Traced functions at the least cost a call."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from learner.aligned import ALIGNMENT


class Graph:
    """A function traced once, for inputs of these specs, and called with tensors in their flat order.

    Calling the ConcreteFunction itself checks and packs every argument again, which costs more than a
    small policy does: 350 us against 110 us for an MLP, and twice as much again for tensors that it
    has not met before. So its op is run directly.
    """

    def __init__(self, function: Callable[..., Any], *specs: Any) -> None:
        # TensorFlow's runtime has the function for as long as this object lives.
        self.concrete = tf.function(function, autograph=False).get_concrete_function(*specs)
        """as TensorFlow has it"""
        self._function_name = self.concrete.name
        self._run = tf.raw_ops.StatefulPartitionedCall
        self._captured = list(self.concrete.captured_inputs)
        self._dtypes = [output.dtype for output in self.concrete.outputs]
        self.outputs: Any = self.concrete.structured_outputs
        """The outputs' structure of tf.TensorSpec."""
        # None if the outputs are nested.
        self._names: list[str] | None = None
        if isinstance(self.outputs, dict) and len(self.outputs) == len(self._dtypes):
            self._names = sorted(self.outputs)

    def __call__(self, *inputs: Any) -> Any:
        """The outputs for the flattened `inputs`, in the function's own structure."""
        # By its name, which TensorFlow would ask the function for, at several calls in Python.
        flat = self._run(args=[*inputs, *self._captured], Tout=self._dtypes, f=self._function_name)
        if self._names is not None:
            return dict(zip(self._names, flat, strict=True))
        return tf.nest.pack_sequence_as(self.outputs, flat)


def shared_tensor(array: np.ndarray) -> tf.Tensor:
    """A tensor on the host over the memory of `array`, which shows what is written there later.

    What an operation is handed of it, and hands on without a copy, changes with it too: so a graph that
    keeps such a tensor, as a variable's value, must not be called with one. TensorFlow itself never
    writes into it.

    Args:
        array: contiguous, of `aligned_zeros` or a part of it that begins where that does; not of bools,
            which not all versions take over.
    """
    assert array.__array_interface__["data"][0] % ALIGNMENT == 0, "operations abort the process"
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
