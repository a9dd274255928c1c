"""What the policy remembers of each environment, in tables on the inference device."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from learner.experience.trajectory import State, Tensor


class StateTables:
    """One table for each entry of the policy's memory, indexed by slot.

    They never leave the device: policy calls gather and scatter inside the graph. Behind the slots
    stand the scratch slot of padding rows and a row that is always zeros.
    """

    def __init__(self, specs: Mapping[str, Any], num_slots: int) -> None:
        self._zeros = num_slots + 1
        self._tables = {
            name: tf.Variable(
                tf.zeros((num_slots + 2, *spec.shape), spec.dtype), trainable=False, name=name
            )
            for name, spec in specs.items()
        }

    def gather(self, slots: Tensor, reset: Tensor) -> State:
        """Memory of `slots` int32 [B], zeros where `reset` bool [B]."""
        # Reading zeros costs no more than reading memory does. Replacing what was read would cost
        # four times as much for stacked frames.
        rows = tf.where(reset, self._zeros, slots)
        return {name: tf.gather(table, rows) for name, table in self._tables.items()}

    def scatter(self, slots: Tensor, state: State) -> None:
        """Store the memory [B, ...] of `slots` int32 [B]."""
        for name, table in self._tables.items():
            table.scatter_update(tf.IndexedSlices(state[name], slots))
