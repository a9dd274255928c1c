"""Specs, and batches as a policy itself would have filled them, for the tests of agents."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from gymnasium import spaces

from learner.agents.agent import Policy
from learner.experience.trajectory import ActInputs, ActOutputs, Batch, State
from protos.specs import ArraySpec, EnvironmentSpec, from_spaces

VECTOR = spaces.Box(-1, 1, (4,), np.float32)
IMAGE = spaces.Box(0, 255, (24, 20, 1), np.uint8)
DISCRETE = spaces.Discrete(3)


def spec(
    observation: spaces.Space[Any] = VECTOR, action: spaces.Space[Any] = DISCRETE
) -> EnvironmentSpec:
    return from_spaces(observation, action)


def draw_leaf(leaf: ArraySpec, leading: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Random values [*leading, *shape] within the leaf's bounds, or standard normal."""
    shape = (*leading, *leaf.shape)
    if leaf.dtype.kind in "iu":
        assert leaf.minimum is not None
        assert leaf.maximum is not None
        return rng.integers(leaf.minimum, leaf.maximum, shape, leaf.dtype, endpoint=True)
    return rng.normal(size=shape).astype(leaf.dtype)


def zero_state(policy: Policy, batch: int) -> State:
    return {
        name: tf.zeros((batch, *entry.shape), entry.dtype) for name, entry in policy.state_specs.items()
    }


def act(
    policy: Policy,
    observation: Sequence[Any],
    state: State,
    *,
    reset: np.ndarray | None = None,
    seed: int = 0,
    greedy: bool = False,
) -> tuple[ActOutputs, State]:
    """One step as serving takes it: the memory is zeroed where `reset`, then the policy acts."""
    rows = observation[0].shape[0]
    reset = np.zeros(rows, bool) if reset is None else reset
    state = {name: tf.constant(zeroed(np.asarray(value), reset)) for name, value in state.items()}
    inputs = ActInputs(
        tuple(tf.constant(leaf) for leaf in observation),
        tf.zeros(rows),
        tf.constant(reset),
        tf.range(rows),
    )
    return policy.act(inputs, state, seed=tf.constant([seed, 1]), greedy=greedy)


def zeroed(value: np.ndarray, reset: np.ndarray) -> np.ndarray:
    value = value.copy()
    value[reset] = 0
    return value


def rollout(
    policy: Policy,
    environment: EnvironmentSpec,
    *,
    length: int = 5,
    batch: int = 3,
    seed: int = 0,
    end: float = 0.3,
) -> Batch:
    """T + 1 steps of random observations, acted on by `policy`, after a random past.

    `end`: probability that a row is the last of its episode; half of those are truncated.
    """
    rng = np.random.default_rng(seed)
    observation = [draw_leaf(leaf, (length + 1, batch), rng) for leaf in environment.observation]
    last = rng.random((length + 1, batch)) < end
    truncated = last & (rng.random(last.shape) < 0.5)
    first = np.concatenate([rng.random((1, batch)) < 0.5, last[:-1]])
    before = [draw_leaf(leaf, (batch,), rng) for leaf in environment.observation]
    _, state = act(policy, before, zero_state(policy, batch))
    state = {name: tf.constant(zeroed(value.numpy(), first[0])) for name, value in state.items()}
    initial_state, records = state, []
    for t in range(length + 1):
        rows = [leaf[t] for leaf in observation]
        outputs, state = act(policy, rows, state, reset=first[t], seed=1000 * seed + t)
        records.append(outputs.record)
    return Batch(
        observation=tuple(tf.constant(leaf) for leaf in observation),
        reward=tf.constant(np.where(first, 0, rng.normal(size=first.shape)), tf.float32),
        first=tf.constant(first),
        terminated=tf.constant(last & ~truncated),
        truncated=tf.constant(truncated),
        record={name: tf.stack([record[name] for record in records]) for name in records[0]},
        version=tf.zeros((length + 1, batch), tf.int64),
        initial_state=initial_state,
        weight=tf.ones(batch),
    )
