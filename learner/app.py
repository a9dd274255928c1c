"""The learner, put together. The only module that knows all its parts: it makes them in the order in
which data flows, so that reading it is reading the architecture."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToDict

from learner.agents.build import make_agent
from learner.config import LearnerOptions
from learner.evaluator import Evaluator, Snapshot
from learner.experience.build import make_experience
from learner.experience.memory import check_memory
from learner.group import ALONE, Group
from learner.serving.acting import Acting
from learner.serving.leases import Lane
from learner.telemetry.ending import reached, reached_return
from learner.telemetry.episodes import EpisodeTracker
from learner.telemetry.evaluations import Evaluation
from learner.telemetry.report import Report
from learner.telemetry.statistics import BusyClock, Rate, Ratio, Registry, Reporting
from learner.threads import Threads
from learner.training.checkpoint import Checkpoint, Checkpoints
from learner.training.restore import load_replay, restore_agent, restore_replay
from learner.training.rounds import Rounds
from learner.training.skipped import SkippedUpdates
from learner.training.trainer import Trainer
from learner.training.update import TracedUpdate, to_device
from learner.training.weights import PublishedWeights, variable_copier
from protos import inference_pb2 as pb
from protos import specs
from protos.specs import EnvironmentSpec

logger = logging.getLogger(__name__)

POLICY_CALLS = "policy_calls"
"""Name, in a checkpoint's metadata, of the number of policy calls, of which random numbers are made."""

SHARED_EVERY = 1000
"""Updates after which a group's first learner gives the others its weights anew: those of machines of
different kinds may round differently, which would add up."""


@dataclass(frozen=True)
class RunFiles:
    """Where a learner leaves what outlives it."""

    checkpoints: Checkpoints
    best_checkpoints: Checkpoints
    """of the evaluation that went best"""
    offending_batch: Path
    """of the last update, after too many that were skipped"""


class Learner:
    """One policy that acts and learns, between a lane of sessions and a folder of checkpoints."""

    def __init__(
        self,
        options: LearnerOptions,
        spec: EnvironmentSpec,
        files: RunFiles,
        *,
        restored: Checkpoint | None,
        registry: Registry,
        local_environments: int = 0,
        group: Group | None = None,
    ) -> None:
        self._options = options
        self._spec = spec
        self._checkpoints = files.checkpoints
        self._group = group
        # Room for the leases of actors that were killed, which last a while, beside their heirs'.
        slots = options.max_environments or 4 * local_environments or 1024
        max_rows = options.inference_batch_size or local_environments or min(256, slots)
        check_memory(options, spec.observation, max_rows=max_rows, environments=local_environments)

        # The agent, and the copy of its policy that acts.
        self.agent = make_agent(options, spec, seed=options.seed, learners=group or ALONE)
        version = 0
        if restored:
            restore_agent(self.agent, restored)
            version = restored.version
        if group:
            # The first learner's: it alone has checkpoints, and the same weights to begin with.
            version = int(group.from_first(np.array([version], np.int64))[0])
            group.share(list(self.agent.variables.values()))
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
            seed=options.seed,
            engine=options.policy_engine,
            clip_observations=options.clip_observations,
        )
        logger.info("actions are computed by %s", self._acting.computed_by)
        self.episodes = EpisodeTracker(slots, stop_return=options.stop_return)
        if restored:
            self.episodes.restore(restored.require("episodes"))
            # Other random numbers than those that the run has used before.
            self._acting.policy.number_from(restored.metadata.get(POLICY_CALLS, 0))

        # Experience: answered steps -> unrolls -> queue, or replay -> batches on the device.
        self._experience = make_experience(
            options,
            self._acting.layout,
            num_slots=slots,
            to_device=to_device,
            progress=self._progress,
            # The generator of a saved replay comes back with it, whatever this is.
            seed=options.seed + version,
            lock_step=options.takes_turns,
        )

        self._replay_checkpoints = files.checkpoints.beside("replay") if options.save_replay else None
        saved = load_replay(self._replay_checkpoints) if self._replay_checkpoints else None
        if saved:
            restore_replay(self._experience, saved)

        # Learning: batches -> weights -> the acting copy.
        self._rounds = self._make_rounds(group) if group else None
        update = TracedUpdate(self.agent, self._acting.layout, options.sample_length, options.batch_size)
        self._training_clock, self._data_wait_clock = BusyClock(), BusyClock()
        self._skipped = SkippedUpdates(
            options.max_skipped_updates, files.offending_batch, before=None if version else 0
        )
        self.trainer = Trainer(
            group.guarded(update) if group else update,
            self._rounds or self._experience.prefetcher,
            self.weights,
            self._training_clock,
            self._data_wait_clock,
            progress=self._progress,
            version=version,
            check=self._skipped.note,
            after_update=self._after_update,
        )

        # Evaluation, beside all that: the agent as it is now and then, in a lane of its own.
        self.evaluator: Evaluator | None = None
        if options.eval_interval:
            self.evaluator = Evaluator(options, spec, self.agent, files.best_checkpoints, self._snapshot)
            if restored:
                evaluations = restored.metadata.get("evaluations", [])
                self.evaluator.restore(evaluations, self.episodes.env_steps)

        self._register(registry)
        self._saved, self._saved_at = self._moment(), time.monotonic()
        self._warned: Mapping[str, float] = {}
        self._step_rate = Rate(self.episodes.env_steps)
        self._rows_per_batch = Ratio()
        self._actors_idle = Ratio()
        self._event_loop, self._queue_full = Rate(), Rate()

    def _register(self, registry: Registry) -> None:
        """Let all parts report."""
        reporting: dict[str, Reporting] = {
            "acting": self._acting,
            "episodes": self.episodes,
            **self._experience.parts(),
            "trainer": self.trainer,
            "updates": self._skipped,
            # The first learner's alone: the age of those that another never saves would be an alarm.
            **({"checkpoints": self._checkpoints} if not (self._group and self._group.index) else {}),
            **({"evaluation": self.evaluator.evaluations} if self.evaluator else {}),
            **({"group": self._rounds} if self._rounds else {}),
        }
        for name, part in reporting.items():
            registry.register(name, part.statistics)
        registry.register_spreads("acting", self._acting.spreads)
        registry.register_spreads("episodes", self.episodes.spreads)
        registry.register_spreads("trainer", self.trainer.spreads)

    def start(self, threads: Threads) -> None:
        """Start the inference and prefetch threads; the caller's thread trains with `trainer.run`."""
        self._acting.start(threads, self.episodes, self._experience.writer)
        threads.start("prefetch thread", self._experience.prefetcher.run)
        if self.evaluator:
            self.evaluator.start(threads)

    def train(self) -> None:
        """Train until the run's end, or `stop_training`. By one thread.

        Raises:
            TrainingFailure: too many updates were skipped, or nothing can be drawn from the replay.
        """
        self.trainer.run()
        self._skipped.check_end()

    def stop_training(self) -> None:
        """Make `trainer.run` return after the update that runs. Any thread may call it. Idempotent."""
        self._experience.prefetcher.close()

    def stop(self) -> None:
        """Make all threads come to their ends. Any thread may call it. Idempotent."""
        self._experience.close()
        self._acting.stop()
        if self.evaluator:
            self.evaluator.stop()

    def clocks(self) -> dict[str, BusyClock]:
        """What each thread of acting and training is busy with, by the thread's name."""
        evaluating = self.evaluator.clocks() if self.evaluator else {}
        return {"training thread": self._training_clock, **self._acting.clocks, **evaluating}

    def lanes(self) -> dict[int, Lane]:
        """Where sessions go, by their mode."""
        lanes: dict[int, Lane] = {pb.TRAIN: self._acting.lane(self._experience.writer)}
        if self.evaluator:
            lanes[pb.EVALUATE] = self.evaluator.lane()
        return lanes

    def finished(self) -> bool:
        """Whether the run has reached its end; of a group, as all learners of it say."""
        if self._rounds:
            return self._rounds.finished
        return reached(self._options, self.episodes, self.evaluations()) is not None

    @property
    def ended_by(self) -> int | None:
        """Index of the group's learner that was to end before the run's end; None if none was."""
        return self._rounds.ended_by if self._rounds else None

    def evaluate_last(self, stopped: Callable[[], bool]) -> None:
        """Evaluate what the run has come to, if it evaluates. By the training thread."""
        if self.evaluator:
            moment = self.episodes.env_steps, self.episodes.seconds(), self.trainer.version
            self.evaluator.last_round(*moment, stopped)

    def evaluations(self) -> list[Evaluation]:
        """The results of all evaluations so far, oldest first."""
        return self.evaluator.evaluations.results() if self.evaluator else []

    def _make_rounds(self, group: Group) -> Rounds:
        # The first one alone has restored how far the run is.
        own = self.episodes.own_env_steps
        self.episodes.note_others(int(group.sum(np.array([own], np.int64))[0]) - own)
        return Rounds(
            self._experience.prefetcher,
            group,
            episodes=self.episodes,
            reached=self._reached_return,
            total_steps=self._options.total_steps,
        )

    def _reached_return(self) -> bool:
        return reached_return(self._options, self.episodes, self.evaluations()) is not None

    def save(self) -> bool:
        """Write a checkpoint of the present state, unless there is one. By the training thread.

        Returns:
            False if it could not be written; the log says why.
        """
        if self._group and self._group.index:
            return True  # The first learner's is the same.
        moment = self._moment()
        if moment == self._saved:
            return True
        arrays, metadata = self._snapshot()
        # A disk that is full now is asked again after the next interval, not after the next update.
        self._saved_at = time.monotonic()
        if self._checkpoints.save(self.trainer.version, arrays, metadata) is None:
            return False
        self._saved = moment
        # After the agent, so that it never knows of versions that the agent has not reached.
        if self._replay_checkpoints and self._experience.replayed:
            self._replay_checkpoints.save(self.trainer.version, *self._experience.replayed.state())
        return True

    def _snapshot(self) -> Snapshot:
        arrays = {name: v.numpy() for name, v in self.agent.variables.items()}
        metadata: dict[str, Any] = {
            "episodes": self.episodes.state(),
            POLICY_CALLS: self._acting.policy.calls,
            "spec": MessageToDict(specs.to_proto(self._spec)),
        }
        if self.evaluator:
            metadata["evaluations"] = self.evaluator.evaluations.state()
        return Snapshot(arrays, metadata)

    def report(self, serving: Mapping[str, float]) -> Report:
        """The interval since the last report; `serving` is the service's statistics."""
        batches, queue = self._acting.statistics(), self._experience.queue.statistics()
        waiting, acting = serving["actor_seconds_waiting"], serving["actor_seconds_acting"]
        env_steps, scalars = self.episodes.env_steps, self.trainer.scalars()
        self._warn_of_skipped()
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
            training_data_wait=self._data_wait_clock.busy_fraction(),
            inference_busy=self._acting.busy_fraction(),
            actors_idle=self._actors_idle.of(waiting, waiting + acting),
            event_loop_busy=min(self._event_loop.per_second(serving["event_loop_cpu_seconds"]), 1.0),
            queue_full=min(self._queue_full.per_second(queue["full_seconds"]), 1.0),
            queue_depth=int(queue["depth"]),
            queue_capacity=int(queue["capacity"]),
            evaluation=self._last_evaluation(),
            training=scalars,
        )

    def _last_evaluation(self) -> float | None:
        results = self.evaluations()
        return results[-1].mean_return if results else None

    def _warn_of_skipped(self) -> None:
        now = self._skipped.statistics()
        updates, skips = (now[name] - self._warned.get(name, 0) for name in ("updates", "skipped"))
        self._warned = now
        if skips > 0:
            logger.warning(
                "%d of %d updates were skipped: their loss or gradient was not finite", skips, updates
            )

    def _moment(self) -> tuple[int, int]:
        """What tells two checkpoints apart: steps are made, and counted, between updates too."""
        return self.trainer.version, self.episodes.env_steps

    def _progress(self) -> float:
        """Part of the run's environment steps that are done, 0 to 1; the same in all learners."""
        steps = self._rounds.env_steps if self._rounds else self.episodes.env_steps
        return min(steps / self._options.total_steps, 1.0)

    def _after_update(self, version: int) -> bool:
        if self._group and version % SHARED_EVERY == 0:
            self._group.share(list(self.agent.variables.values()))
        if time.monotonic() - self._saved_at >= self._options.checkpoint_interval_seconds:
            self.save()
        if self.evaluator:
            self.evaluator.after_update(self.episodes.env_steps, self.episodes.seconds(), version)
        return not self.finished()
