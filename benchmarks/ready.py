"""Batches that are ready before the clock starts. No TensorFlow."""

import numpy as np

from benchmarks.worlds import sample
from learner.config import LearnerOptions
from learner.experience.trajectory import Batch
from learner.experience.unrolls import Layout
from learner.serving.batcher import InferenceBatch
from protos.specs import ArraySpec, EnvironmentSpec

MAX_ACTION = 1e3
"""Random actions without bounds stay below this."""


def ready_batch(spec: EnvironmentSpec, rows: int, max_rows: int, scratch_slot: int) -> InferenceBatch:
    """A batch of `rows` random rows in the middle of their episodes."""
    batch = InferenceBatch(spec.observation, max_rows, scratch_slot)
    for buffer, leaf in zip(
        batch.observation, sample(spec, rows, np.random.default_rng(0)), strict=True
    ):
        buffer[:rows] = leaf
    batch.reward[:rows] = 1
    batch.slots[:rows] = np.arange(rows)
    batch.size = rows
    return batch


def random_unrolls(layout: Layout, spec: EnvironmentSpec, options: LearnerOptions) -> Batch:
    """B unrolls of T transitions within one episode: random observations, actions that are legal."""
    shape = (options.unroll_length + 1, options.batch_size)
    rows = shape[0] * shape[1]
    rng = np.random.default_rng(1)
    no = np.zeros(shape, bool)
    record = {
        name: np.zeros((*shape, *entry.shape), entry.dtype) for name, entry in layout.record.items()
    }
    if "log_prob" in record:
        record["log_prob"] -= 1
    return Batch(
        observation=tuple(leaf.reshape(*shape, *leaf.shape[1:]) for leaf in sample(spec, rows, rng)),
        reward=np.ones(shape, np.float32),
        first=no,
        terminated=no,
        truncated=no,
        record=record,
        version=np.zeros(shape, np.int64),
        initial_state={
            name: np.zeros((options.batch_size, *entry.shape), entry.dtype)
            for name, entry in layout.state.items()
        },
        weight=np.ones(options.batch_size, np.float32),
    )


def random_actions(action: ArraySpec, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Legal actions [rows, *shape]."""
    assert action.minimum is not None
    assert action.maximum is not None
    shape = (rows, *action.shape)
    if action.categorical:
        chosen = rng.integers(action.minimum, action.maximum, shape, endpoint=True)
        return chosen.astype(action.dtype)
    low, high = np.maximum(action.minimum, -MAX_ACTION), np.minimum(action.maximum, MAX_ACTION)
    return rng.uniform(low, high, shape).astype(action.dtype)
