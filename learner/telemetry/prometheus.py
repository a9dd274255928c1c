"""The learner's numbers for Prometheus, in its text format.

Counters and histograms come from the parts' own counts since the start, so that any number of scrapes
read them. What is a part of an interval (how busy a thread was) has one reader, the reporter: of that,
the last interval's report is told.
"""

import importlib.metadata
import platform
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from learner.presets import known_frame_skip
from learner.telemetry.exported import METRICS, Exported, Kind
from learner.telemetry.report import Report
from learner.telemetry.statistics import Registry, Spread
from protos import PROTOCOL_MINOR, PROTOCOL_VERSION
from protos.version import version

CONTENT_TYPE = CONTENT_TYPE_LATEST
"""Of what `exposition` gives."""

BUILD_INFO = "seedbed_build_info"
_BUILD_INFO_MEANING = "1; the labels say which versions run."

_FRAMES, _STEPS = "frames", "episodes/steps_since_start"


class PrometheusMetrics:
    """Everything that `registry` knows, and the process's memory and CPU. Any thread may ask.

    What there is not (a replay, an interval before the first report) is left out, not 0.

    Args:
        registry: of the parts.
        env: the environment, which says how many frames a step has; None if it has no name.
    """

    def __init__(self, registry: Registry, *, env: str | None) -> None:
        self._collector = _LearnerCollector(registry, known_frame_skip(env))
        self._registry = CollectorRegistry()
        self._registry.register(self._collector)
        ProcessCollector(registry=self._registry)

    def note(self, report: Report, values: Mapping[str, Any]) -> None:
        """Take in an interval's report: a sink of the reporter's."""
        self._collector.interval = values

    def exposition(self) -> bytes:
        """What a scrape is answered, of the type `CONTENT_TYPE`."""
        return generate_latest(self._registry)


class _LearnerCollector(Collector):
    def __init__(self, registry: Registry, frames_per_step: int | None) -> None:
        self.interval: Mapping[str, Any] = {}
        """the last report's values, replaced as a whole"""
        self._registry = registry
        self._frames_per_step = frames_per_step
        self._versions = _versions()

    def describe(self) -> Iterator[Metric]:
        """Nothing: without it, registering would collect."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        yield self._build_info()
        numbers, spreads = self._numbers(), self._registry.spreads()
        parts = {name.partition("/")[0] for name in numbers if "/" in name}
        for metric in METRICS:
            if metric.kind is Kind.HISTOGRAM:
                if metric.source in spreads:
                    yield _histogram(metric, spreads[metric.source])
            elif family := _family(metric, numbers, parts):
                yield family

    def _numbers(self) -> Mapping[str, float]:
        interval = {name: value for name, value in self.interval.items() if "/" not in name}
        numbers = {**interval, **self._registry.snapshot()}
        if self._frames_per_step is not None and _STEPS in numbers:
            numbers[_FRAMES] = numbers[_STEPS] * self._frames_per_step
        return numbers

    def _build_info(self) -> Metric:
        family = GaugeMetricFamily(BUILD_INFO, _BUILD_INFO_MEANING, labels=list(self._versions))
        family.add_metric(list(self._versions.values()), 1)
        return family


def _family(metric: Exported, numbers: Mapping[str, float], parts: set[str]) -> Metric | None:
    """The metric as it stands; None if there is no such number."""
    make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    part, _, key = metric.source.partition("/")
    # Parts name what they count once it has happened, and until then it is 0.
    missing = 0.0 if metric.kind is Kind.COUNTER and key and part in parts else None
    if metric.label is None:
        number = numbers.get(metric.source, missing)
        return None if number is None else make(metric.name, metric.meaning, value=number)
    if missing is None:
        return None
    family = make(metric.name, metric.meaning, labels=[metric.label])
    for value in metric.values:
        family.add_metric([value], numbers.get(metric.source.format(value), missing))
    return family


def _histogram(metric: Exported, spread: Spread) -> Metric:
    names = [*(str(float(bound)) for bound in spread.bounds), "+Inf"]
    buckets = list(zip(names, accumulate(map(float, spread.counts)), strict=True))
    return HistogramMetricFamily(metric.name, metric.meaning, buckets, spread.total)


def _versions() -> dict[str, str]:
    return {
        "version": version(),
        "protocol": f"{PROTOCOL_VERSION}.{PROTOCOL_MINOR}",
        "python": platform.python_version(),
        # Of the package, which a process may have before, or without, importing it.
        "tensorflow": _version_of("tensorflow", "tensorflow-cpu"),
    }


def _version_of(*packages: str) -> str:
    """Of the first of these that is installed."""
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"
