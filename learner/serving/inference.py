"""The inference thread: batches of observations in, actions out, steps to the experience."""

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from learner.experience.unrolls import Steps
from learner.flags import LeaseEnd
from learner.serving.batcher import InferenceBatch
from learner.serving.policy_call import PolicyAnswer, PolicyFunction
from learner.telemetry.episodes import EpisodeTracker
from learner.telemetry.statistics import BusyClock, Durations
from learner.training.weights import PublishedWeights


class Experience(Protocol):
    """Where answered steps go: `learner.experience.unrolls.UnrollWriter`, or an evaluation."""

    def wait_for_room(self) -> bool:
        """Block until steps may be appended. False if there is no more use for them."""
        ...

    def append(self, steps: Steps) -> None:
        """Take in answered steps. Their arrays are overwritten after it has returned."""
        ...

    def drop(self, slots: np.ndarray, reason: LeaseEnd) -> None:
        """The leases of these slots, int32 [n], are over."""
        ...


class InferenceWorker:
    """Answers batches until there are no more. `run` is the thread's body; any thread may read
    `load_seconds`.

    `latency` gets the seconds of each batch, from the policy call to its answers.
    """

    def __init__(
        self,
        batches: Iterable[InferenceBatch],
        policy: PolicyFunction,
        weights: PublishedWeights,
        clock: BusyClock,
        latency: Durations,
        episodes: EpisodeTracker,
        experience: Experience,
    ) -> None:
        self._batches = batches
        self._policy = policy
        self._weights = weights
        self._clock = clock
        self._latency = latency
        self._episodes = episodes
        self._experience = experience
        self.load_seconds = 0.0
        """Time that the rows so far would have taken in calls of the best size: a thread that is always
        busy, but with small calls, could do more."""

    def run(self) -> None:
        for batch in self._batches:
            # Before the policy acts: what it then acts with is as new as can be.
            if not self._experience.wait_for_room():
                return
            with self._latency.measured():
                # The clock runs from then on: to wait for a publication is no work.
                with self._weights as version, self._clock.busy():
                    answer = self._policy(batch)
                policy_seconds = self._clock.last_seconds
                with self._clock.busy():
                    # Recorded before it is answered: an environment's next step must find this one
                    # stored.
                    self._record(_steps(batch, answer, version))
                    batch.reply(answer.action, version)
            self.load_seconds += (policy_seconds + self._clock.last_seconds) * answer.efficiency

    def _record(self, steps: Steps) -> None:
        self._episodes.observe(steps.slots, steps.reward, steps.flags)
        self._experience.append(steps)


def _steps(batch: InferenceBatch, answer: PolicyAnswer, version: int) -> Steps:
    rows = slice(0, batch.size)
    return Steps(
        # As NumPy indexes by: converted here for all who do.
        slots=batch.slots[rows].astype(np.intp),
        observation=[leaf[rows] for leaf in batch.observation],
        reward=batch.reward[rows],
        flags=batch.flags[rows],
        record=answer.record,
        version=version,
        state_before=answer.state_before,
    )
