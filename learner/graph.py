"""Traced functions at the least cost a call."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class Graph:
    """A function traced once, for inputs of these specs, and called with tensors in their flat order.

    Calling the ConcreteFunction itself checks and packs every argument again, which costs more than a
    small policy does: 350 us against 110 us for an MLP, and twice as much again for tensors that it
    has not met before. So its op is run directly.
    """

    def __init__(self, function: Callable[..., Any], *specs: Any) -> None:
        self._concrete = tf.function(function, autograph=False).get_concrete_function(*specs)
        self._captured = list(self._concrete.captured_inputs)
        self._dtypes = [output.dtype for output in self._concrete.outputs]
        self.outputs: Any = self._concrete.structured_outputs
        """The outputs' structure of tf.TensorSpec."""
        self._names = sorted(self.outputs) if isinstance(self.outputs, dict) else None

    def __call__(self, *inputs: Any) -> Any:
        """The outputs for the flattened `inputs`, in the function's own structure."""
        flat = tf.raw_ops.StatefulPartitionedCall(
            args=[*inputs, *self._captured], Tout=self._dtypes, f=self._concrete
        )
        if self._names is not None and len(self._names) == len(flat):
            return dict(zip(self._names, flat, strict=True))
        return tf.nest.pack_sequence_as(self.outputs, flat)
