"""The learner, put together. The only module that knows all its parts: it makes them in the order in
which data flows, so that reading it is reading the architecture."""

import logging
import time
from collections.abc import Mapping
from typing import Protocol

from google.protobuf.json_format import MessageToDict

from learner.agents.build import make_agent
from learner.config import LearnerOptions
from learner.experience.prefetch import Prefetcher
from learner.experience.unroll_queue import UnrollQueue
from learner.experience.unrolls import UnrollPool, UnrollWriter, pool_columns
from learner.serving.acting import Acting
from learner.serving.leases import Lane
from learner.telemetry.episodes import EpisodeTracker
from learner.telemetry.report import Report
from learner.telemetry.statistics import BusyClock, Rate, Ratio, Registry
from learner.threads import Threads
from learner.training.checkpoint import Checkpoint, Checkpoints
from learner.training.restore import restore_agent
from learner.training.trainer import Trainer
from learner.training.update import TracedUpdate, to_device
from learner.training.weights import PublishedWeights, variable_copier
from protos import specs
from protos.errors import TrainingFailure
from protos.specs import EnvironmentSpec

logger = logging.getLogger(__name__)

MIN_UPDATES_TO_JUDGE = 10
"""Fewer updates in an interval, all skipped, are bad luck; as many are a training that is over."""


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
        # Room for the leases of actors that were killed, which last a while, beside their heirs'.
        slots = options.max_environments or 4 * local_environments or 1024
        max_rows = options.inference_batch_size or local_environments or min(256, slots)

        # The agent, and the copy of its policy that acts.
        self.agent = make_agent(options, spec, seed=options.seed)
        version = 0
        if restored:
            restore_agent(self.agent, restored)
            version = restored.version
        acting_policy = self.agent.make_policy()
        copy = variable_copier(self.agent.policy.variables, acting_policy.variables)
        self.weights = PublishedWeights(copy, version)
        self.weights.publish(version)

        # Acting: requests -> batches -> actions.
        self._acting = Acting(
            acting_policy,
            spec,
            self.weights,
            num_slots=slots,
            max_rows=max_rows,
            num_threads=options.inference_threads,
            # Other random numbers than those that the run has used before it was resumed.
            seed=options.seed + version,
        )
        self.episodes = EpisodeTracker(slots, stop_return=options.stop_return)
        if restored:
            self.episodes.restore(restored.require("episodes"))

        # Experience: answered steps -> unrolls -> queue -> batches on the device.
        self._queue = UnrollQueue(options.queue_capacity or options.batch_size)
        pool = UnrollPool(
            self._acting.layout,
            options.unroll_length,
            pool_columns(slots, options.queue_capacity or options.batch_size, options.batch_size),
        )
        self._writer = UnrollWriter(pool, self._queue, slots)
        self._prefetcher = Prefetcher(self._queue, pool, options.batch_size, to_device)

        # Learning: batches -> weights -> the acting copy.
        self._training_clock = BusyClock()
        self.trainer = Trainer(
            TracedUpdate(self.agent, self._acting.layout, options.unroll_length, options.batch_size),
            self._prefetcher,
            self.weights,
            self._training_clock,
            progress=self._progress,
            version=version,
            after_update=self._after_update,
        )

        reporting: dict[str, Reporting] = {
            "acting": self._acting,
            "episodes": self.episodes,
            "queue": self._queue,
            "unrolls": self._writer,
            "prefetch": self._prefetcher,
            "trainer": self.trainer,
            "checkpoints": checkpoints,
        }
        for name, part in reporting.items():
            registry.register(name, part.statistics)
        self._saved, self._saved_at = self._moment(), time.monotonic()
        self._checked = (version, 0)
        self._step_rate = Rate(self.episodes.env_steps)
        self._rows_per_batch = Ratio()
        self._actors_idle = Ratio()

    def start(self, threads: Threads) -> None:
        """Start the inference and prefetch threads; the caller's thread trains with `trainer.run`."""
        self._acting.start(threads, self.episodes, self._writer)
        threads.start("prefetch thread", self._prefetcher.run)

    def stop_training(self) -> None:
        """Make `trainer.run` return after the update that runs. Any thread may call it. Idempotent."""
        self._prefetcher.close()

    def stop(self) -> None:
        """Make all threads come to their ends. Any thread may call it. Idempotent."""
        self._prefetcher.close()
        self._queue.close()
        self._acting.stop()

    def lane(self) -> Lane:
        """Where training sessions go."""
        return self._acting.lane(self._writer)

    def finished(self) -> bool:
        """Whether the run has reached its end."""
        solved = self.episodes.solved_env_steps is not None
        return solved or self.episodes.env_steps >= self._options.total_steps

    def save(self) -> bool:
        """Write a checkpoint of the present state, unless there is one. By the training thread.

        Returns:
            False if it could not be written; the log says why.
        """
        moment = self._moment()
        if moment == self._saved:
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
        self._saved = moment
        return True

    def report(self, serving: Mapping[str, float]) -> Report:
        """The interval since the last report; `serving` is the service's statistics."""
        batches, queue = self._acting.statistics(), self._queue.statistics()
        waiting, acting = serving["actor_seconds_waiting"], serving["actor_seconds_acting"]
        env_steps, scalars = self.episodes.env_steps, self.trainer.scalars()
        self._check_updates(scalars)
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
            batch_max=self._acting.max_rows,
            actors=int(serving["streams"]),
            environments=int(serving["environments"]),
            training_busy=self._training_clock.busy_fraction(),
            inference_busy=self._acting.busy_fraction(),
            actors_idle=self._actors_idle.of(waiting, waiting + acting),
            queue_depth=int(queue["depth"]),
            queue_capacity=int(queue["capacity"]),
            training=scalars,
        )

    def _check_updates(self, scalars: Mapping[str, float]) -> None:
        """Raise if training has come to nothing, warn if a part of it has."""
        version, skipped = self.trainer.version, int(scalars.get("skipped_updates", 0))
        updates, skips = version - self._checked[0], skipped - self._checked[1]
        self._checked = (version, skipped)
        if skips > 0 and skips >= updates >= MIN_UPDATES_TO_JUDGE:
            raise TrainingFailure(
                f"the last {updates} updates were skipped: their loss or gradient was not finite. Start "
                "anew with a lower --learning-rate or with --clip-gradient-norm"
            )
        if skips > 0:
            logger.warning(
                "%d of %d updates were skipped: their loss or gradient was not finite", skips, updates
            )

    def _moment(self) -> tuple[int, int]:
        """What tells two checkpoints apart: steps are made, and counted, between updates too."""
        return self.trainer.version, self.episodes.env_steps

    def _progress(self) -> float:
        """Part of the run's environment steps that are done, 0 to 1."""
        return min(self.episodes.env_steps / self._options.total_steps, 1.0)

    def _after_update(self, version: int) -> bool:
        if time.monotonic() - self._saved_at >= self._options.checkpoint_interval_seconds:
            self.save()
        return not self.finished()
