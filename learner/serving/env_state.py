"""What the policy remembers of each environment, in tables on the inference device."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from learner.experience.trajectory import State, Tensor


class StateTables:
    """One table for each entry of the policy's memory, indexed by slot.

    They never leave the device: policy calls gather and scatter inside the graph. The last row is
    the scratch slot of padding rows.
    """

    def __init__(self, specs: Mapping[str, Any], num_slots: int) -> None:
        self._tables = {
            name: tf.Variable(
                tf.zeros((num_slots + 1, *spec.shape), spec.dtype), trainable=False, name=name
            )
            for name, spec in specs.items()
        }

    def gather(self, slots: Tensor, reset: Tensor) -> State:
        """Memory of `slots` int32 [B], zeros where `reset` bool [B]."""
        return {
            name: _zero_where(reset, tf.gather(table, slots)) for name, table in self._tables.items()
        }

    def scatter(self, slots: Tensor, state: State) -> None:
        """Store the memory [B, ...] of `slots` int32 [B]."""
        for name, table in self._tables.items():
            table.scatter_update(tf.IndexedSlices(state[name], slots))


def _zero_where(reset: Tensor, value: Tensor) -> Tensor:
    mask = tf.reshape(reset, [-1] + [1] * (value.shape.rank - 1))
    return tf.where(mask, tf.zeros((), value.dtype), value)
