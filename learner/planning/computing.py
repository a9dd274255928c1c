"""What policy calls and updates cost, on batches that are ready. Needs TensorFlow."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from learner.agents.build import make_agent
from learner.config import LearnerOptions
from learner.experience.unroll_queue import UnrollQueue
from learner.experience.unrolls import UnrollPool, UnrollWriter, pool_columns
from learner.planning.ready import random_unrolls, ready_batch
from learner.serving.batcher import InferenceBatch
from learner.serving.inference import InferenceWorker
from learner.serving.policy_call import PolicyFunction
from learner.telemetry.episodes import EpisodeTracker
from learner.telemetry.statistics import BusyClock, Durations
from learner.training.update import TracedUpdate, to_device
from learner.training.weights import PublishedWeights, variable_copier
from protos.specs import EnvironmentSpec

MIN_CALLS = 3


@dataclass(frozen=True)
class Timed:
    """Seconds of one call."""

    cpu: float
    """of this process, all its threads"""
    wall: float


@dataclass(frozen=True)
class ComputeCosts:
    """Policy calls and updates."""

    policy_calls: Mapping[int, Timed]
    """by rows"""
    update: Timed
    """of one batch: copied to the device, trained on, the weights published"""
    accelerated: bool
    """whether TensorFlow has found an accelerator"""
    by_numpy: bool
    """whether NumPy computes policy calls; then the event loop makes them, and no accelerator"""


def measure_compute(
    options: LearnerOptions,
    spec: EnvironmentSpec,
    sizes: Sequence[int],
    seconds: float,
    *,
    max_rows: int,
) -> ComputeCosts:
    """Act for batches of these sizes, and learn from one batch again and again.

    Args:
        options: the agent and its batch.
        spec: of the environments.
        sizes: rows of policy calls.
        seconds: CPU seconds for each measurement, after a quarter to warm up.
        max_rows: most rows of a policy call in the learner. What computes them depends on it.

    Raises:
        ConfigError: the options do not fit the spec.
    """
    agent = make_agent(options, spec, seed=options.seed)
    acting = agent.make_policy()
    slots, max_rows = max(sizes), max(max_rows, *sizes)
    weights = PublishedWeights(variable_copier(agent.policy.variables, acting.variables))
    policy = PolicyFunction(
        acting,
        spec.observation,
        num_slots=slots,
        max_rows=max_rows,
        seed=options.seed,
        weights=weights,
        engine=options.policy_engine,
    )
    weights.publish(0)
    calls = {
        rows: _policy_call(policy, ready_batch(spec, rows, max_rows, slots), options, seconds)
        for rows in sizes
    }
    update = TracedUpdate(agent, policy.layout, options.sample_length, options.batch_size)
    batch = random_unrolls(policy.layout, spec, options)
    watch = Stopwatch(seconds)
    for version in watch:
        # Fetched, because a device may still be at work when the call returns.
        float(update(to_device(batch), 0.0)["loss"])
        weights.publish(version)
    accelerated = bool(tf.config.list_logical_devices("GPU"))
    return ComputeCosts(calls, watch.per_turn(), accelerated, policy.by_numpy)


def _policy_call(
    policy: PolicyFunction,
    batch: InferenceBatch,
    options: LearnerOptions,
    seconds: float,
) -> Timed:
    """One policy call for the batch, recording included."""
    rows = batch.size
    capacity = options.queue_capacity or options.batch_size
    queue = UnrollQueue(capacity)
    pool = UnrollPool(policy.layout, options.unroll_length, pool_columns(rows, capacity, rows))
    watch = Stopwatch(seconds)

    def batches() -> Iterator[InferenceBatch]:
        for _ in watch:
            # In training's place: what is finished makes room again.
            pool.release(queue.poll(len(pool.serial)))
            yield batch

    writer = UnrollWriter(pool, queue, rows)
    meters = BusyClock(), Durations()
    InferenceWorker(policy, *meters, EpisodeTracker(rows), writer).run(batches())
    return watch.per_turn()


class Stopwatch:
    """Iterates for so much CPU time, after a quarter of it to warm up, and times its turns."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._turns = 0
        self._spent = np.zeros(2)

    def __iter__(self) -> Iterator[int]:
        yield from self._until(self._seconds / 4)
        began = _clocks()
        for turn in self._until(self._seconds):
            yield turn
            self._turns = turn + 1
        self._spent = _clocks() - began

    def _until(self, seconds: float) -> Iterator[int]:
        ends, turn = time.process_time() + seconds, 0
        while turn < MIN_CALLS or time.process_time() < ends:
            yield turn
            turn += 1

    def per_turn(self) -> Timed:
        """Seconds of one of the turns that were counted."""
        cpu, wall = self._spent / self._turns
        return Timed(float(cpu), float(wall))


def _clocks() -> np.ndarray:
    return np.array([time.process_time(), time.monotonic()])
