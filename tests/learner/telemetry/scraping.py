"""A scrape as Prometheus sees it, and of everything that a learner can export."""

from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from learner.telemetry.exported import METRICS, Kind
from learner.telemetry.prometheus import PrometheusMetrics
from learner.telemetry.report import Report, metrics
from learner.telemetry.statistics import Histogram, Registry


def exposed(prometheus: PrometheusMetrics) -> dict[str, Metric]:
    """The families of the learner and the process, by the names that Prometheus stores."""
    families = text_string_to_metric_families(prometheus.exposition().decode())
    return {
        f"{family.name}_total" if family.type == "counter" else family.name: family
        for family in families
    }


def report(**changes: Any) -> Report:
    """An interval's report, but for `changes`."""
    given: dict[str, Any] = {"env_steps": 9, "total_steps": 10, "seconds": 1.0, "steps_per_second": 1.0}
    return Report(**{**given, **changes})


def everything() -> PrometheusMetrics:
    """Of a learner that has every part, after its first interval."""
    registry = Registry()
    parts: dict[str, dict[str, float]] = {}
    spreads: dict[str, dict[str, Histogram]] = {}
    for metric in METRICS:
        part, _, key = metric.source.partition("/")
        if metric.kind is Kind.HISTOGRAM:
            spreads.setdefault(part, {})[key] = Histogram([1.0])
        elif key:
            keys = [key.format(value) for value in metric.values or [""]]
            parts.setdefault(part, {}).update(dict.fromkeys(keys, 1.0))
    for name, numbers in parts.items():
        registry.register(name, numbers.copy)
    for name, histograms in spreads.items():
        read = {key: histogram.spread() for key, histogram in histograms.items()}
        registry.register_spreads(name, read.copy)
    prometheus = PrometheusMetrics(registry, env="ALE/Pong-v5")
    interval = report(mean_return_100=1.0, actors_idle=0.5)
    prometheus.note(interval, metrics(interval, {}))
    return prometheus
