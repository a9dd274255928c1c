"""Evaluation while training: dedicated environments, weights of one moment, the best checkpoint."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from learner.agents.agent import Agent
from learner.config import LearnerOptions
from learner.serving.acting import Acting
from learner.serving.leases import Lane
from learner.telemetry.episodes import EpisodeTracker
from learner.telemetry.evaluations import Evaluations
from learner.telemetry.report import return_text
from learner.telemetry.statistics import BusyClock
from learner.threads import Threads
from learner.training.checkpoint import Checkpoints
from learner.training.weights import PublishedWeights, variable_copier
from protos.specs import EnvironmentSpec

logger = logging.getLogger(__name__)

LAST_ROUND_SECONDS = 600.0
"""How long the end of a run waits for its last evaluation."""


ABSENCE_SECONDS = 30.0
"""How long it waits for an evaluation actor to come back."""


class Snapshot(NamedTuple):
    """What a checkpoint holds, of one moment."""

    arrays: Mapping[str, np.ndarray]
    metadata: Mapping[str, Any]


class Evaluator:
    """A second policy that acts greedily in a lane of its own, and never learns.

    Every `eval_interval` environment steps of training the trained weights are copied into it, and
    `eval_episodes` are played with them while training goes on. The agent that did best is kept as it
    was then.

    Args:
        agent: gives the policy, and the weights to evaluate.
        best: where the best checkpoint goes; keeps one.
        snapshot: gives the agent as a checkpoint holds it.
    """

    def __init__(
        self,
        options: LearnerOptions,
        spec: EnvironmentSpec,
        agent: Agent,
        best: Checkpoints,
        snapshot: Callable[[], Snapshot],
    ) -> None:
        # Twice as many, because the leases of an actor that was killed last a while beside its heir's.
        slots = 2 * options.evaluation_environments
        self._interval = options.eval_interval
        self._best = best
        self._snapshot = snapshot
        self._next = options.eval_interval
        self._evaluated: Snapshot | None = None
        policy = agent.make_policy()
        self._weights = PublishedWeights(variable_copier(agent.policy.variables, policy.variables))
        self._acting = Acting(
            policy,
            spec,
            self._weights,
            num_slots=slots,
            max_rows=options.evaluation_environments,
            seed=options.seed,
            greedy=True,
            engine=options.policy_engine,
            clip_observations=options.clip_observations,
            name="evaluation thread",
        )
        self.evaluations = Evaluations(slots, options.eval_episodes)
        self._episodes = EpisodeTracker(slots, on_episode=self.evaluations.add)
        self._kept = 0

    def clocks(self) -> dict[str, BusyClock]:
        """What each thread is busy with that infers for it, by its name."""
        return self._acting.clocks

    def lane(self) -> Lane:
        """Where evaluation sessions go."""
        return self._acting.lane(self.evaluations, trains=False)

    def start(self, threads: Threads) -> None:
        """Start the inference thread of the lane."""
        self._acting.start(threads, self._episodes, self.evaluations)

    def stop(self) -> None:
        """Make the thread come to its end. Any thread may call it. Idempotent."""
        self.evaluations.close()
        self._acting.stop()

    def restore(self, state: object, env_steps: int) -> None:
        """Go on from the checkpoint's `Evaluations.state`, at `env_steps` of training.

        Raises:
            CheckpointError: it is damaged.
        """
        self.evaluations.restore(state)
        self._kept = len(self.evaluations.results())
        self._next = (env_steps // self._interval + 1) * self._interval

    def after_update(self, env_steps: int, seconds: float, version: int) -> None:
        """Take in the round that has ended, and begin one if it is time. By the training thread."""
        self._take_result()
        if env_steps >= self._next and not self.evaluations.under_way:
            self._begin(env_steps, seconds, version)

    def last_round(
        self, env_steps: int, seconds: float, version: int, stopped: Callable[[], bool]
    ) -> None:
        """Evaluate what the run has come to, unless it has been. By the training thread."""
        self._wait(stopped)
        self._take_result()
        results = self.evaluations.results()
        evaluated = bool(results) and results[-1].version == version
        if stopped() or evaluated or self.evaluations.under_way:
            return
        self._begin(env_steps, seconds, version)
        self._wait(stopped)
        self._take_result()

    def _begin(self, env_steps: int, seconds: float, version: int) -> None:
        environments = self._acting.slots.leased
        if not environments:
            return
        self._next = (env_steps // self._interval + 1) * self._interval
        # Kept until the round has ended: by then training has changed them.
        self._evaluated = self._snapshot()
        self._weights.publish(version)
        self.evaluations.begin(env_steps, seconds, version, environments)

    def _wait(self, stopped: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LAST_ROUND_SECONDS
        seen = time.monotonic()
        while not stopped() and not self.evaluations.wait_for_end(0.1):
            now = time.monotonic()
            if self._acting.slots.leased:
                seen = now
            if now > deadline or now - seen > ABSENCE_SECONDS:
                logger.warning("the last evaluation has not ended, and is left out")
                return

    def _take_result(self) -> None:
        results = self.evaluations.results()
        if len(results) == self._kept:
            return
        self._kept = len(results)
        result = results[-1]
        logger.info(
            "evaluation at step %s: mean return of %d episodes %s (%s to %s)",
            f"{result.env_steps:,}",
            result.episodes,
            *map(return_text, (result.mean_return, result.min_return, result.max_return)),
        )
        if self._evaluated is not None and self.evaluations.best() == result:
            self._best.save(result.version, *self._evaluated)
        self._evaluated = None
