"""An agent's update as one graph, and agents from their checkpoints."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from learner.experience.trajectory import Batch
from learner.training.checkpoint import Checkpoint
from learner.training.restore import restore_agent
from learner.training.update import TracedUpdate, to_device
from protos.errors import CheckpointError
from tests.learner.experience.worlds import LAYOUT

LENGTH, BATCH_SIZE = 3, 2


class Recorder:
    """An agent that reports what it is handed."""

    def __init__(self) -> None:
        self.traces = 0
        self.variables: Mapping[str, Any] = {
            "policy/w": tf.Variable([1.0, 2.0]),
            "optimizer/step": tf.Variable(0, dtype=tf.int64),
        }

    def update(self, batch: Batch, progress: Any) -> Mapping[str, Any]:
        self.traces += 1
        assert batch.reward.shape == (LENGTH + 1, BATCH_SIZE), "known to the graph"
        return {
            "reward": tf.reduce_sum(batch.reward),
            "progress": progress,
            "age": batch.initial_state["age"],
        }


def batch_of(reward: float) -> Batch:
    """Zeros of the layout's shapes, but for the rewards and the memory's age."""

    def rows(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.zeros((LENGTH + 1, BATCH_SIZE, *shape), dtype)

    return Batch(
        observation=tuple(rows(leaf.shape, leaf.dtype) for leaf in LAYOUT.observation),
        reward=rows((), np.float32) + np.float32(reward),
        first=rows((), bool),
        terminated=rows((), bool),
        truncated=rows((), bool),
        record={name: rows(*entry) for name, entry in LAYOUT.record.items()},
        version=rows((), np.int64),
        initial_state={
            name: np.full((BATCH_SIZE, *entry.shape), reward, entry.dtype)
            for name, entry in LAYOUT.state.items()
        },
        weight=np.ones(BATCH_SIZE, np.float32),
    )


def test_one_trace_takes_every_batch_and_the_progress_of_its_moment() -> None:
    agent: Any = Recorder()
    update = TracedUpdate(agent, LAYOUT, LENGTH, BATCH_SIZE)
    found = [update(to_device(batch_of(n)), n / 4) for n in (1, 2)]
    assert [float(scalars["reward"]) for scalars in found] == [8, 16]
    assert [float(scalars["progress"]) for scalars in found] == [0.25, 0.5]
    assert [scalars["age"].numpy().tolist() for scalars in found] == [[1, 1], [2, 2]]
    assert agent.traces == 1


def test_batches_become_tensors_of_the_same_dtypes() -> None:
    batch = batch_of(1)
    for array, tensor in zip(tf.nest.flatten(batch), tf.nest.flatten(to_device(batch)), strict=True):
        assert isinstance(tensor, tf.Tensor)
        assert tensor.dtype == array.dtype
        np.testing.assert_array_equal(tensor, array)


def checkpoint(**arrays: Any) -> Checkpoint:
    named = {name.replace("_", "/"): np.array(array) for name, array in arrays.items()}
    return Checkpoint(Path("step_1.npz"), 1, named, {})


def test_every_variable_is_restored() -> None:
    agent: Any = Recorder()
    restore_agent(agent, checkpoint(policy_w=np.float32([3, 4]), optimizer_step=np.int64(9)))
    assert agent.variables["policy/w"].numpy().tolist() == [3, 4]
    assert int(agent.variables["optimizer/step"]) == 9


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    agent: Any = Recorder()
    with pytest.raises(
        CheckpointError, match=r"optimizer/step: expected int64 \[\], found float32 \[\]"
    ):
        restore_agent(agent, checkpoint(policy_w=np.float32([3, 4]), optimizer_step=np.float32(9)))
    assert agent.variables["policy/w"].numpy().tolist() == [1, 2]
