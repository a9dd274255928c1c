"""The published recording rules, computed from window means: as much of PromQL as they use.

One learner is measured, so that aggregations over its one series change nothing, and each of
`avg_over_time(NAME[WINDOW])` and `rate(NAME[WINDOW])` is the mean that the caller gives for NAME: of the
last window, or, with an offset, of the one before.
"""

import re
from collections.abc import Mapping
from typing import Any

DEMAND, WANTED = "seedbed:actor_demand:ratio", "seedbed:actors_wanted"

_OVER_TIME = re.compile(r"(?:avg_over_time|rate)\((\w+)\[2m\]( offset 2m)?\)")

Means = Mapping[str, float]
"""Of metrics, by name, over a window of two minutes."""
_AGGREGATION = re.compile(r"(?:sum|min) by \([\w, ]*\)")
_MATCHING = re.compile(r"(?<!by )\bon \([\w, ]*\)")


class DemandRules:
    """`PrometheusRule` of the actor-demand component."""

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        (group,) = manifest["spec"]["groups"]
        self._limits = {
            rule["labels"]["limit"]: rule["expr"] for rule in group["rules"] if rule["record"] == DEMAND
        }
        (self._wanted,) = (rule["expr"] for rule in group["rules"] if rule["record"] == WANTED)
        self.metrics = {
            name
            for expression in [*self._limits.values(), self._wanted]
            for name, _ in _OVER_TIME.findall(expression)
        }
        """names of the metrics that the rules read"""

    def demands(self, means: Means) -> dict[str, float]:
        """By limit, how many times the present actors it could take."""
        return {limit: _value(expression, means, None) for limit, expression in self._limits.items()}

    def wanted(self, means: Means | None, before: Means | None) -> float | None:
        """Actors that are wanted, by the last window and the one before; None for no number."""
        value, _, guard = self._wanted.partition("and on (namespace)")
        if means is None or before is None or not _value(guard, means, before):
            return None
        demand = min(self.demands(means).values())
        return _value(value.replace(DEMAND, str(demand)), means, before)


def _value(expression: str, means: Means, before: Means | None) -> float:
    """Of arithmetic and comparison, once PromQL's words are gone."""

    def mean(found: re.Match[str]) -> str:
        window = before if found[2] else means
        assert window is not None, "the demands have no offset"
        return repr(float(window[found[1]]))

    text = _MATCHING.sub("", _AGGREGATION.sub("", _OVER_TIME.sub(mean, expression)))
    # Of a file in this repository; nothing but clamp_min is at hand for it.
    value: float = eval(" ".join(text.split()), {"__builtins__": {}, "clamp_min": max})
    return value
