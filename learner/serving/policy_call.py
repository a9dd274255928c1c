"""The policy call: one graph over the state tables, for batches of every size."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import accumulate
from typing import Literal, NamedTuple

import numpy as np
import tensorflow as tf

from learner.agents.agent import Policy
from learner.aligned import aligned_zeros
from learner.experience.trajectory import ActInputs, State
from learner.experience.unrolls import Layout, RowSpec
from learner.flags import RESET
from learner.graph import Graph, shared_tensor
from learner.numpy_graph import NumpyGraph, UnsupportedGraph
from learner.serving.batcher import InferenceBatch
from learner.serving.env_state import StateTables
from learner.training.weights import PublishedWeights
from protos.errors import ConfigError
from protos.specs import ArraySpec

MOST_WORK = 50_000_000
"""Of a policy call that NumPy computes where nobody has chosen it, in multiply-adds. So many take about
a millisecond, in which the event loop hears nobody; and for more of them TensorFlow is faster."""

WORK_OF_AN_ELEMENT = 30
"""Multiply-adds of a matrix product that take as long as one element of anything else: about 1 ns."""


def bucket_sizes(largest: int) -> list[int]:
    """Batch sizes that policy calls are padded to: 1, 2, 3, 4, 6, 8, 12, 16, 24, ... and `largest`.

    Steps of at most 1.5 keep the padding under a third of the work, which on a CPU costs as much as
    real rows; so few sizes keep what accelerators prepare for each size small.
    """
    sizes = {largest}
    power = 1
    while power < largest:
        sizes.update(size for size in (power, power * 3 // 2) if size < largest)
        power *= 2
    return sorted(sizes)


def efficiencies(seconds: Mapping[int, float], largest: int, *, padded: bool) -> list[float]:
    """By rows from 0 to `largest`, the rows of a call for the time that it takes, as a part of the most
    that any call makes of it: 0 to 1.

    Args:
        seconds: of a call, by bucket, measured once. Larger calls that seem to take less are taken to
            take as long.
        padded: to the next bucket, whose time calls take then; else they take what lies between those of
            the buckets around them.
    """
    buckets = sorted(seconds)
    of_buckets = list(accumulate((max(seconds[bucket], 1e-9) for bucket in buckets), max))
    rows = np.arange(largest + 1)
    if padded:
        taken = np.array(of_buckets)[np.searchsorted(buckets, rows)]
    else:
        taken = np.interp(rows, buckets, of_buckets)
    rates = rows / taken
    found: list[float] = (rates / rates.max()).tolist()
    return found


PolicyEngine = Literal["auto", "numpy", "tensorflow"]
"""What computes actions; auto takes NumPy for small networks, where there is no accelerator."""


class PolicyAnswer(NamedTuple):
    """What the policy said about one batch of n rows.

    Only the actions outlive it: the rest may share the batch's memory, and is used before that is filled
    again.
    """

    action: np.ndarray
    """[n, *shape] of the action's dtype; a copy"""
    record: Mapping[str, np.ndarray]
    """[n, ...] each"""
    state_before: Callable[[np.ndarray], State]
    """from row indices to the memory before those rows"""
    version: int
    """training version of the weights"""
    efficiency: float
    """of a call for n rows, see `efficiencies`"""


class _Published(NamedTuple):
    """Weights for NumPy."""

    version: int
    weights: Mapping[str, np.ndarray]
    """by their names in the graph"""


class _Inputs(NamedTuple):
    """The first rows of a batch, as tensors over its own memory."""

    tensors: list[tf.Tensor]
    """the leaves, and `packed`"""
    rows: np.ndarray
    """their part of `InferenceBatch.rows`, which is not contiguous"""
    packed: np.ndarray
    """where it is copied to at each call"""


class PolicyFunction:
    """`Policy.act` over the state tables: traced once for every batch size, and warmed. NumPy computes
    it; or TensorFlow, for which batches are padded to buckets.

    Random numbers are made of `seed` and the number of the call. `_lock` guards that, and what NumPy
    computes with; it is held while that computes. `_published` is replaced by the publisher's thread, a
    tuple at a time: NumPy waits for no publication.

    Args:
        policy: acts.
        observation: of its environments.
        weights: publishes to the policy's variables; None if nobody changes them.
        num_slots: environments served at once.
        max_rows: most rows of a call.
        seed: of the policy's samples.
        greedy: the best action instead of a sample.
        engine: what computes it.

    Raises:
        ConfigError: NumPy was chosen, and the policy has operations that it is not used for.
    """

    def __init__(
        self,
        policy: Policy,
        observation: Sequence[ArraySpec],
        *,
        num_slots: int,
        max_rows: int,
        seed: int,
        greedy: bool = False,
        weights: PublishedWeights | None = None,
        engine: PolicyEngine = "auto",
    ) -> None:
        self._weights = weights or PublishedWeights(lambda: None)
        self._tables = StateTables(policy.state_specs, num_slots)
        self._calls = 0
        self._lock = threading.Lock()
        self._buckets = bucket_sizes(max_rows)
        self._bucket_of = [min(b for b in self._buckets if b >= n) for n in range(max_rows + 1)]
        self._call = _trace(policy, self._tables, observation, seed, greedy)
        self.efficiency = [1.0] * (max_rows + 1)
        """by rows of a call, see `efficiencies`; known once it is warm"""
        self.layout = Layout(observation, self._record_specs(), self._state_specs(policy))
        """What a step consists of, as the policy's trace has shown."""
        self._record_outputs = [(name, f"record/{name}") for name in self.layout.record]
        self._state_outputs = [(name, f"state/{name}") for name in self.layout.state]
        self._numpy = _numpy_graph(self._call, engine, max_rows)
        self._published = self._used = _Published(self._weights.version, {})
        if self._numpy:
            self._weights.follow(partial(self._follow, self._numpy))
        # Inputs for a GPU are copied there at each call. What TensorFlow shares is no bools, and not
        # nothing, which it aborts the process for.
        self._shares = not _accelerated() and all(
            leaf.dtype != np.bool_ and leaf.num_elements for leaf in observation
        )

    @property
    def by_numpy(self) -> bool:
        """Whether NumPy computes it: then a call is short, and waits for no other thread."""
        return self._numpy is not None

    def still_weights(self) -> AbstractContextManager[object]:
        """Where weights are published, the call is made in this context: nothing changes in the middle
        of it. NumPy needs none, for it has copies."""
        return nullcontext() if self._numpy else self._weights

    def warm_up(self, batch: InferenceBatch) -> None:
        """Run every bucket on padding, so that no actor waits for what the first call prepares; and once
        more, to see how long it takes."""
        seconds, numbered = {}, self.calls
        for size in self._buckets:
            batch.size = size
            self(batch)
            begun = time.monotonic()
            self(batch)
            seconds[size] = time.monotonic() - begun
        batch.size = 0
        self.number_from(numbered)
        self.efficiency = efficiencies(seconds, self._buckets[-1], padded=not self.by_numpy)

    @property
    def calls(self) -> int:
        """The number of the next call."""
        with self._lock:
            return self._calls

    def number_from(self, call: int) -> None:
        """Give the next call this number: those before it were an earlier process's of the run."""
        with self._lock:
            self._calls = call

    def __call__(self, batch: InferenceBatch) -> PolicyAnswer:
        """Act for the batch's rows."""
        if self._numpy:
            return self._compute(self._numpy, batch)
        size = batch.size
        # Counted here, not by a variable: two threads could read one value of that.
        outputs = self._run(batch, self._bucket_of[size], self._next_call())
        return PolicyAnswer(
            # It is sent after the batch's turn.
            action=np.array(outputs["action"])[:size],
            record={name: np.asarray(outputs[output])[:size] for name, output in self._record_outputs},
            state_before=lambda rows: {
                name: tf.gather(outputs[output], rows).numpy() for name, output in self._state_outputs
            },
            version=self._weights.version,
            efficiency=self.efficiency[size],
        )

    def _follow(self, graph: NumpyGraph, version: int) -> None:
        self._published = _Published(version, graph.present_weights())

    def _compute(self, graph: NumpyGraph, batch: InferenceBatch) -> PolicyAnswer:
        size = batch.size
        with self._lock:
            published = self._published
            if published is not self._used:
                graph.use(published.weights)
                self._used = published
            batch.set_call(self._calls)
            self._calls += 1
            outputs = graph(*(leaf[:size] for leaf in batch.observation), batch.rows[:, :size])
        return PolicyAnswer(
            # It is sent after the batch's turn, and may be the batch's memory.
            action=outputs["action"].copy(),
            record={name: outputs[output] for name, output in self._record_outputs},
            state_before=lambda rows: {
                name: outputs[output][rows] for name, output in self._state_outputs
            },
            version=published.version,
            efficiency=self.efficiency[size],
        )

    def _run(self, batch: InferenceBatch, bucket: int, number: int) -> dict[str, tf.Tensor]:
        batch.set_call(number)
        if self._shares:
            # The call returns when all its operations are done, so that none reads a later batch.
            inputs = batch.inputs.get(bucket) or _share(batch, bucket)
            inputs.packed[...] = inputs.rows
            tensors = inputs.tensors
        else:
            arrays = (*(leaf[:bucket] for leaf in batch.observation), batch.rows[:, :bucket])
            tensors = [tf.constant(array) for array in arrays]
        outputs: dict[str, tf.Tensor] = self._call(*tensors)
        return outputs

    def _next_call(self) -> int:
        with self._lock:
            self._calls += 1
            return self._calls - 1

    def _record_specs(self) -> dict[str, RowSpec]:
        return {
            name.removeprefix("record/"): RowSpec(
                tuple(spec.shape[1:]), np.dtype(spec.dtype.as_numpy_dtype)
            )
            for name, spec in self._call.outputs.items()
            if name.startswith("record/")
        }

    def _state_specs(self, policy: Policy) -> dict[str, RowSpec]:
        return {
            name: RowSpec(tuple(spec.shape), np.dtype(spec.dtype.as_numpy_dtype))
            for name, spec in policy.state_specs.items()
        }


def _accelerated() -> bool:
    return bool(tf.config.list_physical_devices("GPU"))


def _numpy_graph(graph: Graph, engine: PolicyEngine, max_rows: int) -> NumpyGraph | None:
    """The policy call by NumPy, if that is to compute it."""
    if engine == "tensorflow" or (engine == "auto" and _accelerated()):
        return None
    try:
        found = NumpyGraph(graph)
    except UnsupportedGraph as error:
        if engine == "auto":
            return None
        raise ConfigError(
            f"--policy-engine numpy: only TensorFlow computes some operations of this policy ({error}): "
            "say auto or tensorflow"
        ) from error
    small = engine == "numpy" or _work_of_a_row(found) * max_rows <= MOST_WORK
    return found if small else None


def _work_of_a_row(graph: NumpyGraph) -> int:
    """In multiply-adds: what a second row adds to the first."""
    one, two = (graph.work(rows) for rows in (1, 2))
    elements = two.elements - one.elements
    return two.multiply_adds - one.multiply_adds + WORK_OF_AN_ELEMENT * elements


def _share(batch: InferenceBatch, bucket: int) -> _Inputs:
    """The batch's inputs of this size, to be found there from now on."""
    packed = aligned_zeros((len(batch.rows), bucket), batch.rows.dtype)
    leaves = [leaf[:bucket] for leaf in batch.observation]
    tensors = [shared_tensor(array) for array in (*leaves, packed)]
    inputs = batch.inputs[bucket] = _Inputs(tensors, batch.rows[:, :bucket], packed)
    return inputs


def _trace(
    policy: Policy,
    tables: StateTables,
    observation: Sequence[ArraySpec],
    seed: int,
    greedy: bool,
) -> Graph:
    def call(*inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        *leaves, rows = inputs
        slots, flags, reward = rows[0], rows[1], tf.bitcast(rows[2], tf.float32)
        reset = tf.bitwise.bitwise_and(flags, RESET) != 0
        before = tables.gather(slots, reset)
        outputs, after = policy.act(
            ActInputs(tuple(leaves), reward, reset, slots),
            before,
            seed=tf.stack([seed % 2**31, rows[3, 0]]),
            greedy=greedy,
        )
        tables.scatter(slots, after)
        return {
            "action": outputs.action,
            **{f"record/{name}": value for name, value in outputs.record.items()},
            **{f"state/{name}": value for name, value in before.items()},
        }

    return Graph(
        call,
        *(tf.TensorSpec((None, *leaf.shape), leaf.dtype) for leaf in observation),
        tf.TensorSpec((4, None), tf.int32),
    )
