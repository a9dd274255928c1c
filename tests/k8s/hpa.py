"""The control law of Kubernetes' HorizontalPodAutoscaler, as its controller computes it.

After `horizontal.go` and `replica_calculator.go` of Kubernetes' `pkg/controller/podautoscaler`, for one
external metric with a target of type AverageValue: tolerance, stabilization windows, and policies.
Replicas are numbers of pods, times are in seconds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TOLERANCE = 0.1
"""`--horizontal-pod-autoscaler-tolerance` of the controller manager, unless it is told another."""

SYNC_SECONDS = 15.0
"""`--horizontal-pod-autoscaler-sync-period`."""

_SUFFIXES = {"m": 1e-3, "k": 1e3, "": 1.0}


def quantity(text: str | float) -> float:
    """A Kubernetes quantity, such as 900m."""
    text = str(text)
    suffix = text[-1] if text[-1] in _SUFFIXES else ""
    return float(text.removesuffix(suffix)) * _SUFFIXES[suffix]


@dataclass(frozen=True)
class Policy:
    """At most so many pods, or percent of them, in a period."""

    percent: bool
    value: int
    period_seconds: float


@dataclass(frozen=True)
class Direction:
    """How fast one of the two directions may go."""

    window_seconds: float
    policies: tuple[Policy, ...]
    select: str

    @staticmethod
    def of(rules: Mapping[str, Any]) -> "Direction":
        policies = (
            Policy(each["type"] == "Percent", each["value"], each["periodSeconds"])
            for each in rules["policies"]
        )
        return Direction(rules["stabilizationWindowSeconds"], tuple(policies), rules["selectPolicy"])


@dataclass(frozen=True)
class Rule:
    """What a HorizontalPodAutoscaler says."""

    lowest: int
    highest: int
    target: float
    """metric for each pod"""
    up: Direction
    down: Direction

    @staticmethod
    def of(manifest: Mapping[str, Any]) -> "Rule":
        spec = manifest["spec"]
        (metric,) = spec["metrics"]
        target = metric["external"]["target"]
        assert target["type"] == "AverageValue"
        return Rule(
            spec["minReplicas"],
            spec["maxReplicas"],
            quantity(target["averageValue"]),
            Direction.of(spec["behavior"]["scaleUp"]),
            Direction.of(spec["behavior"]["scaleDown"]),
        )


@dataclass
class Autoscaler:
    """A rule at work. `sync` is called every `SYNC_SECONDS`, by one caller."""

    rule: Rule
    _recommendations: list[tuple[float, int]] = field(default_factory=list)
    _added: list[tuple[float, int]] = field(default_factory=list)
    _removed: list[tuple[float, int]] = field(default_factory=list)

    def sync(self, now: float, replicas: int, metric: float | None) -> int:
        """The number of replicas from now on; None is a metric that cannot be had."""
        if replicas > self.rule.highest or replicas < self.rule.lowest:
            desired = min(max(replicas, self.rule.lowest), self.rule.highest)
        elif metric is None:
            return replicas
        else:
            desired = self._limited(now, replicas, self._stabilized(now, replicas, metric))
        if desired > replicas:
            self._added.append((now, desired - replicas))
        elif desired < replicas:
            self._removed.append((now, replicas - desired))
        return desired

    def _recommended(self, replicas: int, metric: float) -> int:
        if abs(metric / (self.rule.target * replicas) - 1) <= TOLERANCE:
            return replicas
        return math.ceil(metric / self.rule.target)

    def _stabilized(self, now: float, replicas: int, metric: float) -> int:
        recommended = self._recommended(replicas, metric)
        up = down = recommended
        for when, each in self._recommendations:
            if when > now - self.rule.up.window_seconds:
                up = min(up, each)
            if when > now - self.rule.down.window_seconds:
                down = max(down, each)
        oldest = now - max(self.rule.up.window_seconds, self.rule.down.window_seconds)
        self._recommendations = [each for each in self._recommendations if each[0] > oldest]
        self._recommendations.append((now, recommended))
        return min(max(replicas, up), down)

    def _limited(self, now: float, replicas: int, desired: int) -> int:
        if desired > replicas:
            allowed = max(self._bound(self.rule.up, now, replicas, 1), replicas)
            return min(desired, allowed, self.rule.highest)
        if desired < replicas:
            allowed = min(self._bound(self.rule.down, now, replicas, -1), replicas)
            return max(desired, allowed, self.rule.lowest)
        return replicas

    def _bound(self, direction: Direction, now: float, replicas: int, sign: int) -> int:
        """The farthest number that the policies of this direction allow."""
        proposals = []
        for policy in direction.policies:
            since = now - policy.period_seconds
            added, removed = (
                sum(count for when, count in events if when > since)
                for events in (self._added, self._removed)
            )
            start = replicas - added + removed
            if not policy.percent:
                proposals.append(start + sign * policy.value)
            elif sign > 0:
                proposals.append(math.ceil(start * (1 + policy.value / 100)))
            else:
                proposals.append(int(start * (1 - policy.value / 100)))
        farthest = max if (direction.select == "Max") == (sign > 0) else min
        return farthest(proposals)
