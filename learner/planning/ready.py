"""Batches and messages that are ready before the clock starts. No TensorFlow."""

import numpy as np

from learner.config import LearnerOptions
from learner.experience.trajectory import Batch
from learner.experience.unrolls import Layout
from learner.serving.batcher import InferenceBatch
from protos import inference_pb2 as pb
from protos import tensors
from protos.specs import ArraySpec, EnvironmentSpec

VERSION = 100_000
"""A policy version late in a run, for the sizes of messages: it travels as a varint."""


def sample(spec: EnvironmentSpec, rows: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Random leaves [rows, *shape] of any spec whose leaves are bounded integers or floats."""

    def leaf(entry: ArraySpec) -> np.ndarray:
        shape = (rows, *entry.shape)
        if entry.dtype.kind == "f" or entry.minimum is None or entry.maximum is None:
            return rng.uniform(0, 1, shape).astype(entry.dtype)
        low, high = entry.minimum.astype(np.int64), entry.maximum.astype(np.int64)
        return rng.integers(low, high, shape, endpoint=True).astype(entry.dtype)

    return [leaf(entry) for entry in spec.observation]


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
    """A training batch within one episode: random observations, actions that are legal."""
    shape = (options.sample_length + 1, options.batch_size)
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


def step_message(spec: EnvironmentSpec, rows: int, sequence: int) -> pb.ClientMessage:
    """A step in the middle of an episode of environments 0 to `rows` - 1."""
    leaves = sample(spec, rows, np.random.default_rng(0))
    step = pb.Step(
        sequence=sequence,
        environment=np.arange(rows, dtype=tensors.INDEX).tobytes(),
        reward=np.ones(rows, tensors.REWARD).tobytes(),
        flags=np.zeros(rows, tensors.FLAGS).tobytes(),
        observation=[leaf.tobytes() for leaf in leaves],
    )
    return pb.ClientMessage(step=step)


def actions_message(spec: EnvironmentSpec, rows: int, sequence: int) -> pb.ServerMessage:
    """The answer to `step_message`."""
    action = spec.action.zeros(rows).tobytes()
    return pb.ServerMessage(actions=pb.Actions(sequence=sequence, action=action, policy_version=VERSION))
