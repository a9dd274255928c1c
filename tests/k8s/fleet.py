"""A learner and its actors on Kubernetes, as the capacity model sees them: pods and metrics."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from learner.planning.model import Costs, Deployment, Prediction, predict, round_trip, training_seconds

WAITS = "seedbed_training_data_wait_seconds_total"
QUEUE_FULL = "seedbed_unroll_queue_full_seconds_total"
INFERENCE_LOAD = "seedbed_inference_load_seconds_total"
INFERENCE_BUSY = "seedbed_inference_busy_seconds_total"
EVENT_LOOP = "seedbed_event_loop_cpu_seconds_total"
POLICY_CPU = "seedbed_event_loop_policy_cpu_seconds_total"
POLICY_LOAD = "seedbed_event_loop_policy_load_seconds_total"
UPDATES = "seedbed_updates_total"

RATIOS = (
    WAITS,
    QUEUE_FULL,
    INFERENCE_LOAD,
    INFERENCE_BUSY,
    EVENT_LOOP,
    POLICY_CPU,
    POLICY_LOAD,
)
"""Counters of seconds, whose rates are parts of the time."""

LIMITED_BY_TRAINING = ("training", "accelerator", "learner cores")
"""Resources that slow training down, so that its queue is full when they are."""


@dataclass(frozen=True)
class Workload:
    """What the parts cost, and what the learner has."""

    name: str
    costs: Costs
    envs_per_actor: int
    learner_cores: float = 8.0
    inference_threads: int = 1
    max_rows: int = 256
    policy_part: float = 0.65
    """of what a policy call costs, the policy; the rest is what is done with its answer"""

    def deployment(self, actors: int) -> Deployment:
        # Each pod has a core of its own.
        return Deployment(
            actors,
            self.envs_per_actor,
            cores=self.learner_cores,
            actor_cores=float(actors),
            inference_threads=self.inference_threads,
            max_rows=self.max_rows,
        )

    @cache  # noqa: B019 - a few workloads, which live as long as the tests
    def prediction(self, actors: int) -> Prediction:
        return predict(self.costs, self.deployment(actors))

    def rate(self, actors: int) -> float:
        """Environment steps a second."""
        return self.prediction(actors).rate

    @cached_property
    def highest_rate(self) -> float:
        """Of any number of actors."""
        return self.rate(5_000)

    def smallest(self, part: float) -> int:
        """The fewest actors that reach this part of the highest rate."""
        low, high = 0, 5_000
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (
                (low, middle) if self.rate(middle) >= part * self.highest_rate else (middle, high)
            )
        return high

    @cache  # noqa: B019 - a few workloads, which live as long as the tests
    def measured(self, actors: int) -> Mapping[str, float]:
        """Rates of the counters that so many actors make the learner export, and their number."""
        found = self.prediction(actors)
        deployment = self.deployment(actors)
        trip = round_trip(self.costs, deployment, found.rate)
        rows = self.envs_per_actor
        full = found.rate > 0.999 * found.capacities[found.first]
        waits_for_training = full and found.first in LIMITED_BY_TRAINING
        # Policy calls take the accelerator from training, which then works for longer.
        training = found.rate * training_seconds(self.costs) * trip.learner_stretch
        training /= 1 - found.rate * self.costs.accelerated_row
        # Little's law: a cycle longer than the round trip was spent before a full queue.
        blocked = 1 - trip.seconds * found.rate / (actors * rows)
        load = min(found.rate * self._cheapest_row(), 1.0)
        messages = found.rate / rows * self.costs.event_loop.at(rows)
        # One thread does both, so messages leave the rest for calls.
        at_once = min(found.inference_busy, 1 - messages) if self.costs.on_event_loop else 0.0
        return {
            WAITS: 0.0 if waits_for_training else max(1 - training, 0.0),
            QUEUE_FULL: max(blocked, 0.0) if waits_for_training else 0.0,
            INFERENCE_LOAD: load,
            INFERENCE_BUSY: found.inference_busy,
            EVENT_LOOP: messages + at_once,
            POLICY_CPU: self.policy_part * at_once,
            POLICY_LOAD: self.policy_part * min(load, at_once),
            "seedbed_actors": actors,
            UPDATES: found.rate,
        }

    def _cheapest_row(self) -> float:
        """Seconds of an inference thread for a row of the largest call."""
        call = self.costs.policy_call.fixed + self.max_rows * (
            self.costs.accelerated_row or self.costs.policy_call.per_row / self.costs.policy_parallelism
        )
        return call / self.max_rows / self.inference_threads


@dataclass(frozen=True)
class Conditions:
    """What a cluster does to a fleet. Times in seconds."""

    start_seconds: tuple[float, float] = (15.0, 60.0)
    """from a pod's creation to its actor's first step, from and to"""
    preemptions_per_hour: float = 0.1
    """of one pod"""
    ripple: float = 0.04
    """part of the time that training waits, and that the queue is full, in turn, whatever their means"""
    noise: float = 0.05
    """standard deviation of a rate between two scrapes"""
    scrape_seconds: float = 15.0
    """the autoscaler's own interval, for simplicity"""
    window_seconds: float = 120.0
    """of the rules' means"""
    delay_seconds: float = 30.0
    """from a scrape to the number that the autoscaler sees"""


class Fleet:
    """Actor pods that come and go, and the metrics of the learner that they work for.

    Args:
        pods: replicas at the start, all of them connected.
    """

    def __init__(
        self, workload: Workload, conditions: Conditions, pods: int, rng: np.random.Generator
    ) -> None:
        self._workload = workload
        self._conditions = conditions
        self._rng = rng
        self._ready_at = [-math.inf] * pods
        self._down_until = self._warm_at = -math.inf
        # By age, the oldest first: the window before, the window, and what has not arrived yet.
        self._length = round(conditions.window_seconds / conditions.scrape_seconds)
        late = round(conditions.delay_seconds / conditions.scrape_seconds)
        self._scrapes: deque[Mapping[str, float] | None] = deque(
            [None] * (2 * self._length + late), maxlen=2 * self._length + late
        )

    @property
    def replicas(self) -> int:
        return len(self._ready_at)

    def connected(self, now: float) -> int:
        return sum(ready <= now for ready in self._ready_at) if now >= self._down_until else 0

    def scale(self, now: float, replicas: int) -> None:
        """As a Deployment does: new pods start, and those that are not ready go first."""
        self._ready_at.sort()
        del self._ready_at[replicas:]
        self._ready_at += [self._starts(now) for _ in range(replicas - self.replicas)]

    def preempt(self, now: float, part: float) -> None:
        """Take each pod away by this chance; another one replaces it."""
        lost = self._rng.random(self.replicas) < part
        self._ready_at = [
            self._starts(now) if gone else ready
            for gone, ready in zip(lost, self._ready_at, strict=True)
        ]

    def restart_learner(self, now: float, *, down_seconds: float, warming_seconds: float) -> None:
        """Nothing answers for a while; then training waits for its first batches."""
        self._down_until = now + down_seconds
        self._warm_at = self._down_until + warming_seconds

    def scrape(self, now: float) -> None:
        """Read the metrics once, if there is a learner with actors."""
        connected = self.connected(now)
        self._scrapes.append(self._read(connected, warm=now >= self._warm_at) if connected else None)

    def windows(self) -> tuple[dict[str, float] | None, dict[str, float] | None]:
        """Means of the window that the autoscaler sees by now, and of the one before."""
        scrapes = list(self._scrapes)
        length = self._length
        return _means(scrapes[length : 2 * length]), _means(scrapes[:length])

    def _read(self, connected: int, *, warm: bool) -> Mapping[str, float]:
        conditions, read = self._conditions, dict(self._workload.measured(connected))
        if not warm:
            read |= {WAITS: 1.0, QUEUE_FULL: 0.0, UPDATES: 0.0}
        for name in (WAITS, QUEUE_FULL):
            read[name] = conditions.ripple + (1 - conditions.ripple) * read[name]
        for name in RATIOS:
            noisy = read[name] + self._rng.normal(0.0, conditions.noise)
            read[name] = min(max(noisy, 0.0), 1.0)
        return read

    def _starts(self, now: float) -> float:
        return now + self._rng.uniform(*self._conditions.start_seconds)


def _means(scrapes: list[Mapping[str, float] | None]) -> dict[str, float] | None:
    found = [each for each in scrapes if each is not None]
    # A rate takes two.
    if len(found) < 2:
        return None
    return {name: float(np.mean([each[name] for each in found])) for name in found[0]}
