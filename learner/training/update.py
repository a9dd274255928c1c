"""An agent's update as one graph, and batches as the tensors that it takes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from learner.agents.agent import Agent
from learner.experience.trajectory import Batch, Tensor
from learner.experience.unrolls import Layout
from learner.graph import Graph


class TracedUpdate:
    """`Agent.update`, traced once for the run's batch shape [T+1, B, ...], which never changes."""

    def __init__(self, agent: Agent, layout: Layout, unroll_length: int, batch_size: int) -> None:
        spec = _batch_spec(layout, unroll_length + 1, batch_size)
        self._graph = Graph(agent.update, spec, tf.TensorSpec((), tf.float32))

    def __call__(self, batch: Batch, progress: float) -> Mapping[str, Tensor]:
        """Learn from a batch of tensors, `progress` (0 to 1) into the run; scalars to report."""
        # Not a float of Python's: of each value of those TensorFlow keeps a tensor, for ever.
        moment = tf.constant(np.float32(progress))
        scalars: Mapping[str, Tensor] = self._graph(*tf.nest.flatten(batch), moment)
        return scalars


def to_device(batch: Batch) -> Batch:
    """The batch's arrays as tensors where training runs."""
    converted: Batch = tf.nest.map_structure(tf.constant, batch)
    return converted


def _batch_spec(layout: Layout, rows: int, batch_size: int) -> Batch:
    def steps(shape: tuple[int, ...], dtype: Any) -> tf.TensorSpec:
        return tf.TensorSpec((rows, batch_size, *shape), dtype)

    return Batch(
        observation=tuple(steps(leaf.shape, leaf.dtype) for leaf in layout.observation),
        reward=steps((), tf.float32),
        first=steps((), tf.bool),
        terminated=steps((), tf.bool),
        truncated=steps((), tf.bool),
        record={name: steps(*entry) for name, entry in layout.record.items()},
        version=steps((), tf.int64),
        initial_state={
            name: tf.TensorSpec((batch_size, *entry.shape), entry.dtype)
            for name, entry in layout.state.items()
        },
        weight=tf.TensorSpec((batch_size,), tf.float32),
    )
