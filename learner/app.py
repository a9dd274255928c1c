"""The learner, put together. The only module that knows all its parts: it makes them in the order in
which data flows, so that reading it is reading the architecture."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from google.protobuf.json_format import MessageToDict

from learner.agents.agent import Agent
from learner.agents.build import make_agent
from learner.config import LearnerOptions
from learner.experience.prefetch import Prefetcher
from learner.experience.trajectory import Batch
from learner.experience.unroll_queue import UnrollQueue
from learner.experience.unrolls import Layout, Steps, UnrollPool, UnrollWriter
from learner.graph import Graph
from learner.serving.batcher import Batcher, InferenceBatch
from learner.serving.inference import InferenceWorker, PolicyFunction
from learner.serving.service import Lane
from learner.serving.slots import Slots
from learner.telemetry.episodes import EpisodeTracker
from learner.telemetry.report import Report
from learner.telemetry.statistics import BusyClock, Rate, Ratio, Registry
from learner.threads import Threads
from learner.training.checkpoint import Checkpoint, Checkpoints, Expected, require_arrays
from learner.training.trainer import Trainer
from learner.training.weights import PublishedWeights, variable_copier
from protos import specs
from protos.specs import EnvironmentSpec

logger = logging.getLogger(__name__)


class Reporting(Protocol):
    """A part with numbers to report."""

    def statistics(self) -> Mapping[str, float]: ...


class Learner:
    """One policy that acts and learns, between a lane of sessions and a folder of checkpoints."""

    def __init__(
        self,
        options: LearnerOptions,
        spec: EnvironmentSpec,
        *,
        checkpoints: Checkpoints,
        restored: Checkpoint | None,
        registry: Registry,
        local_environments: int = 0,
    ) -> None:
        self._options = options
        self._spec = spec
        self._checkpoints = checkpoints
        slots = options.max_environments or 2 * local_environments or 1024
        max_rows = options.inference_batch_size or local_environments or min(256, slots)

        # The agent, and the copy of its policy that acts.
        self.agent = make_agent(options, spec, total_updates=total_updates(options), seed=options.seed)
        version = 0
        if restored:
            restore_agent(self.agent, restored)
            version = restored.version
        acting = self.agent.make_policy()
        copy = variable_copier(self.agent.policy.variables, acting.variables)
        self.weights = PublishedWeights(copy, version)
        self.weights.publish(version)

        # Acting: requests -> batches -> actions.
        self._slots = Slots(slots)
        self._batcher = Batcher(
            spec.observation,
            max_rows=max_rows,
            scratch_slot=slots,
            num_threads=options.inference_threads,
        )
        policy = PolicyFunction(
            acting,
            spec.observation,
            num_slots=slots,
            max_rows=max_rows,
            seed=options.seed + version,
        )
        policy.warm_up(InferenceBatch(spec.observation, max_rows, slots))

        # Experience: answered steps -> unrolls -> queue -> batches on the device.
        capacity = options.queue_capacity or options.batch_size
        self._queue = UnrollQueue(capacity)
        # Every slot may be writing one, and finish one more after the queue was last seen not full;
        # the prefetch thread holds a batch until it has copied it.
        columns = 2 * slots + capacity + options.batch_size
        pool = UnrollPool(policy.layout, options.unroll_length, columns)
        self._writer = UnrollWriter(pool, self._queue, slots)
        self.episodes = EpisodeTracker(slots, stop_return=options.stop_return)
        if restored:
            self.episodes.restore(restored.metadata["episodes"])
        self._prefetcher = Prefetcher(self._queue, pool, options.batch_size, to_device)

        # Learning: batches -> weights -> the acting copy.
        self._training_clock = BusyClock()
        self.trainer = Trainer(
            trace_update(self.agent, policy.layout, options),
            self._prefetcher,
            self.weights,
            self._training_clock,
            version=version,
            after_update=self._after_update,
        )
        self._inference_clocks = [BusyClock() for _ in range(options.inference_threads)]
        self._workers = [
            InferenceWorker(self._batcher, policy, self.weights, clock, self._record)
            for clock in self._inference_clocks
        ]

        reporting: dict[str, Reporting] = {
            "slots": self._slots,
            "batcher": self._batcher,
            "unrolls": self._writer,
            "queue": self._queue,
            "prefetch": self._prefetcher,
            "trainer": self.trainer,
            "episodes": self.episodes,
            "checkpoints": checkpoints,
        }
        for name, part in reporting.items():
            registry.register(name, part.statistics)
        self._saved, self._saved_at = self._progress(), time.monotonic()
        self._step_rate = Rate(self.episodes.env_steps)
        self._rows_per_batch = Ratio()
        self._actors_idle = Ratio()

    def start(self, threads: Threads) -> None:
        """Start the inference and prefetch threads; the caller's thread trains with `trainer.run`."""
        for index, worker in enumerate(self._workers):
            threads.start(f"inference thread {index}", worker.run)
        threads.start("prefetch thread", self._prefetcher.run)

    def stop_training(self) -> None:
        """Make `trainer.run` return after the update that runs. Any thread may call it. Idempotent."""
        self._prefetcher.close()

    def stop(self) -> None:
        """Make all threads come to their ends. Any thread may call it. Idempotent."""
        self._prefetcher.close()
        self._queue.close()
        self._batcher.close()

    def lane(self) -> Lane:
        """Where training sessions go."""
        return Lane(
            spec=self._spec,
            slots=self._slots,
            max_rows=self._batcher.max_rows,
            submit=self._batcher.submit,
            version=lambda: self.weights.version,
            drop=self._writer.drop,
        )

    def finished(self) -> bool:
        """Whether the run has reached its end."""
        solved = self.episodes.solved_env_steps is not None
        return solved or self.episodes.env_steps >= self._options.total_steps

    def save(self) -> bool:
        """Write a checkpoint of the present state, unless there is one. By the training thread.

        Returns:
            False if it could not be written; the log says why.
        """
        progress = self._progress()
        if progress == self._saved:
            return True
        arrays = {name: v.numpy() for name, v in self.agent.variables.items()}
        metadata = {
            "episodes": self.episodes.state(),
            "spec": MessageToDict(specs.to_proto(self._spec)),
        }
        # A disk that is full now is asked again after the next interval, not after the next update.
        self._saved_at = time.monotonic()
        if self._checkpoints.save(self.trainer.version, arrays, metadata) is None:
            return False
        self._saved = progress
        return True

    def report(self, serving: Mapping[str, float]) -> Report:
        """The interval since the last report; `serving` is the service's statistics."""
        batches, queue = self._batcher.statistics(), self._queue.statistics()
        waiting, acting = serving["actor_seconds_waiting"], serving["actor_seconds_acting"]
        env_steps = self.episodes.env_steps
        return Report(
            env_steps=env_steps,
            total_steps=self._options.total_steps,
            seconds=self.episodes.seconds(),
            steps_per_second=self._step_rate.per_second(env_steps),
            episodes=self.episodes.episodes,
            mean_return_100=self.episodes.mean_return(),
            policy_version=self.trainer.version,
            policy_lag=self.trainer.policy_lag.mean(),
            batch_mean=self._rows_per_batch.of(batches["rows"], batches["batches"]),
            batch_max=self._batcher.max_rows,
            actors=int(serving["streams"]),
            environments=int(serving["environments"]),
            training_busy=self._training_clock.busy_fraction(),
            inference_busy=max(clock.busy_fraction() for clock in self._inference_clocks),
            actors_idle=self._actors_idle.of(waiting, waiting + acting),
            queue_depth=int(queue["depth"]),
            queue_capacity=int(queue["capacity"]),
            training=self.trainer.scalars(),
        )

    def _progress(self) -> tuple[int, int]:
        """What tells two checkpoints apart: steps are made, and counted, between updates too."""
        return self.trainer.version, self.episodes.env_steps

    def _record(self, steps: Steps) -> bool:
        self.episodes.observe(
            steps.slots,
            steps.reward,
            steps.first,
            steps.terminated,
            steps.truncated,
            steps.lease_start,
        )
        return self._writer.append(steps)

    def _after_update(self, version: int) -> bool:
        if time.monotonic() - self._saved_at >= self._options.checkpoint_interval_seconds:
            self.save()
        return not self.finished()


def total_updates(options: LearnerOptions) -> int:
    """Updates in a whole run, for schedules."""
    return max(options.total_steps // (options.unroll_length * options.batch_size), 1)


def restore_agent(agent: Agent, checkpoint: Checkpoint) -> None:
    """Load a checkpoint into the agent's variables.

    Raises:
        CheckpointError: it does not fit them.
    """
    variables = agent.variables
    require_arrays(
        checkpoint,
        {
            name: Expected(tuple(v.shape), np.dtype(v.dtype.as_numpy_dtype))
            for name, v in variables.items()
        },
    )
    for name, variable in variables.items():
        variable.assign(checkpoint.arrays[name])


def to_device(batch: Batch) -> Batch:
    """The batch's arrays as tensors where training runs."""
    converted: Batch = tf.nest.map_structure(tf.constant, batch)
    return converted


def trace_update(
    agent: Agent, layout: Layout, options: LearnerOptions
) -> Callable[[Batch], Mapping[str, Any]]:
    """The agent's update as one graph for the run's batch shape, which never changes."""
    steps, size = options.unroll_length + 1, options.batch_size

    def rows(shape: tuple[int, ...], dtype: Any) -> tf.TensorSpec:
        return tf.TensorSpec((steps, size, *shape), dtype)

    spec = Batch(
        observation=tuple(rows(leaf.shape, leaf.dtype) for leaf in layout.observation),
        reward=rows((), tf.float32),
        first=rows((), tf.bool),
        terminated=rows((), tf.bool),
        truncated=rows((), tf.bool),
        record={name: rows(*entry) for name, entry in layout.record.items()},
        version=rows((), tf.int64),
        initial_state={
            name: tf.TensorSpec((size, *entry.shape), entry.dtype)
            for name, entry in layout.state.items()
        },
    )
    graph = Graph(agent.update, spec)
    return lambda batch: dict(graph(*tf.nest.flatten(batch)))
