"""Inference: batches of observations in, actions out, steps to the experience."""

import time
from collections.abc import Iterable
from typing import Protocol

import numpy as np

from learner.experience.unrolls import Steps
from learner.flags import LeaseEnd
from learner.serving.batcher import Batcher, InferenceBatch
from learner.serving.policy_call import PolicyAnswer, PolicyFunction
from learner.telemetry.episodes import EpisodeTracker
from learner.telemetry.statistics import BusyClock, Durations

CALLS_PER_TIMING = 17
"""Policy calls of which one is timed by the thread's CPU clock, and speaks for the others until the next
is: to read that clock is a system call, as long as a small policy's matrix products. A prime: where
calls of different sizes take turns, each size is timed as often as it comes."""


class Experience(Protocol):
    """Where answered steps go: `learner.experience.unrolls.UnrollWriter`, or an evaluation."""

    def wait_for_room(self) -> bool:
        """Block until steps may be appended. False if there is no more use for them."""
        ...

    def has_room(self) -> bool:
        """Whether `wait_for_room` would return at once, and True. Never blocks."""
        ...

    def append(self, steps: Steps) -> None:
        """Take in answered steps. Their arrays are overwritten after it has returned."""
        ...

    def drop(self, slots: np.ndarray, reason: LeaseEnd) -> None:
        """The leases of these slots, int32 [n], are over."""
        ...


class InferenceWorker:
    """Answers batches, in a thread of its own (`run`) or in that which submits them (`act_at_once`). Any
    thread may read `load_seconds`.

    `latency` gets the seconds of each batch, from the policy call to its answers.
    """

    def __init__(
        self,
        policy: PolicyFunction,
        clock: BusyClock,
        latency: Durations,
        episodes: EpisodeTracker,
        experience: Experience,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._latency = latency
        self._episodes = episodes
        self._experience = experience
        self.load_seconds = 0.0
        """Time that the rows so far would have taken in calls of the best size: a thread that is always
        busy, but with small calls, could do more."""
        self.cpu_seconds = 0.0
        """CPU time of the policy calls by `act_at_once`, which is a part of their thread's; as the calls
        say that were timed"""
        self.cpu_load_seconds = 0.0
        """what of that their rows would have taken in calls of the best size"""
        self._until_timing = 1
        self._timed = (0.0, 0.0)
        """CPU time of the call that was timed last, and its load"""

    def run(self, batches: Iterable[InferenceBatch]) -> None:
        """The body of an inference thread, until there are no more batches."""
        for batch in batches:
            # Before the policy acts: what it then acts with is as new as can be.
            if not self._experience.wait_for_room():
                return
            with self._latency.measured():
                # The clock runs from then on: to wait for a publication is no work.
                with self._policy.still_weights(), self._clock.busy():
                    answer = self._policy(batch)
                policy_seconds = self._clock.last_seconds
                with self._clock.busy():
                    # Recorded before it is answered: the next step of an environment, which another
                    # thread may have, must find this one stored.
                    self._record(batch, answer)
                    batch.reply(answer.action, answer.version)
            self.load_seconds += (policy_seconds + self._clock.last_seconds) * answer.efficiency

    def act_at_once(self, batcher: Batcher) -> bool:
        """Answer what waits, in the caller's thread, which alone submits.

        Returns:
            False if something is left, for which there is no room in the experience.
        """
        while self._experience.has_room():
            batch = batcher.poll()
            if batch is None:
                return True
            with self._clock.busy():
                answer = self._act(batch)
                # Answered before it is recorded: actors go on meanwhile, and this thread alone hears of
                # their next steps.
                batch.reply(answer.action, answer.version)
                self._latency.add(self._clock.working_seconds())
                self._record(batch, answer)
            self.load_seconds += self._clock.last_seconds * answer.efficiency
            cpu_seconds, load_seconds = self._timed
            self.cpu_seconds += cpu_seconds
            self.cpu_load_seconds += load_seconds
            batcher.give_back(batch)
        return False

    def _act(self, batch: InferenceBatch) -> PolicyAnswer:
        """What the policy says, and now and then what CPU time that takes."""
        self._until_timing -= 1
        if self._until_timing:
            return self._policy(batch)
        self._until_timing = CALLS_PER_TIMING
        begun = time.thread_time()
        answer = self._policy(batch)
        cpu_seconds = time.thread_time() - begun
        self._timed = (cpu_seconds, cpu_seconds * answer.efficiency)
        return answer

    def _record(self, batch: InferenceBatch, answer: PolicyAnswer) -> None:
        steps = _steps(batch, answer)
        self._episodes.observe(steps.slots, steps.reward, steps.flags)
        self._experience.append(steps)


def _steps(batch: InferenceBatch, answer: PolicyAnswer) -> Steps:
    rows = slice(0, batch.size)
    return Steps(
        # As NumPy indexes by: converted here for all who do.
        slots=batch.slots[rows].astype(np.intp),
        observation=[leaf[rows] for leaf in batch.observation],
        reward=batch.reward[rows],
        flags=batch.flags[rows],
        record=answer.record,
        version=answer.version,
        state_before=answer.state_before,
    )
