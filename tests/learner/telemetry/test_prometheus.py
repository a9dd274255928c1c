"""What a scrape is answered: parsed by Prometheus's own parser, and compared with its page."""

import re
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric

from learner.flags import LEASE_START
from learner.local_actors import LocalActors
from learner.serving.policy_call import PolicyEngine
from learner.serving.recorder import FileRecorder
from learner.telemetry.exported import METRICS, Kind
from learner.telemetry.prometheus import BUILD_INFO, CONTENT_TYPE, PrometheusMetrics, _version_of
from learner.telemetry.report import Report, metrics
from learner.telemetry.statistics import Histogram, Registry
from protos import PROTOCOL_MINOR, PROTOCOL_VERSION
from tests.fakes import FakeLearner, LogLines
from tests.learner.serving.test_acting import MAX_ROWS, Story
from tests.learner.serving.wire import Stream, step
from tests.learner.telemetry.scraping import everything, exposed, report

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def samples(family: Metric) -> dict[tuple[str, ...], float]:
    return {tuple(sample.labels.values()): sample.value for sample in family.samples}


def value(prometheus: PrometheusMetrics, name: str) -> float:
    (number,) = samples(exposed(prometheus)[name]).values()
    return number


# The format -------------------------------------------------------------------------------------


def test_names_follow_prometheus_conventions() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"seedbed_[a-z]+(_[a-z]+)*", metric.name), metric.name
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
        assert not re.search(r"_(ms|milliseconds|minutes|kb|megabytes|percent)(_|$)", metric.name)
        assert metric.meaning.endswith("."), metric.name


def test_each_metric_has_its_type_and_meaning() -> None:
    families = exposed(everything())
    for metric in METRICS:
        family = families[metric.name]
        assert (family.type, family.documentation) == (metric.kind, metric.meaning)
    assert CONTENT_TYPE.startswith("text/plain; version=")


def test_process_memory_and_cpu_are_told() -> None:
    families = exposed(PrometheusMetrics(Registry(), env=None))
    assert value(PrometheusMetrics(Registry(), env=None), "process_resident_memory_bytes") > 1e6
    assert {"process_cpu_seconds_total", "process_start_time_seconds"} <= set(families)


def test_versions_are_told() -> None:
    (sample,) = exposed(PrometheusMetrics(Registry(), env=None))[BUILD_INFO].samples
    assert sample.value == 1
    assert set(sample.labels) == {"version", "protocol", "python", "tensorflow"}
    # With the minor version: two sides may be one of these apart, and no more.
    assert sample.labels["protocol"] == f"{PROTOCOL_VERSION}.{PROTOCOL_MINOR}"
    assert all(re.fullmatch(r"\d[\w.]*", version) for version in sample.labels.values())


def test_a_package_that_is_not_installed_has_an_unknown_version() -> None:
    assert _version_of("no-such-package-of-ours", "nor-this-one") == "unknown"
    assert _version_of("no-such-package-of-ours", "prometheus-client") != "unknown"


# Values -----------------------------------------------------------------------------------------


def test_counters_and_gauges_are_those_of_now() -> None:
    registry, depth = Registry(), {"depth": 1.0, "full_seconds": 2.5}
    registry.register("queue", lambda: depth)
    prometheus = PrometheusMetrics(registry, env=None)
    assert value(prometheus, "seedbed_unroll_queue_depth") == 1
    depth["depth"] = 3
    assert value(prometheus, "seedbed_unroll_queue_depth") == 3
    assert value(prometheus, "seedbed_unroll_queue_full_seconds_total") == 2.5


def test_what_never_happened_is_0_and_what_is_not_there_is_left_out() -> None:
    registry = Registry()
    registry.register("serving", lambda: {"count_errors_internal": 2})
    families = exposed(PrometheusMetrics(registry, env=None))
    errors = samples(families["seedbed_stream_errors_total"])
    assert errors[("internal",)] == 2
    assert errors[("invalid_argument",)] == errors[("unauthenticated",)] == 0
    assert samples(families["seedbed_leases_lost_total"]) == {(): 0}
    assert "seedbed_unrolls_dropped_total" not in families
    assert "seedbed_sessions" not in families
    assert "seedbed_replay_unrolls" not in families


def test_histogram_is_cumulative_and_has_its_sum_and_count() -> None:
    registry, rows = Registry(), Histogram([1, 2, 4])
    registry.register_spreads("acting", lambda: {"batch_rows": rows.spread()})
    for size in (1, 2, 2, 4, 7):
        rows.add(size)
    family = exposed(PrometheusMetrics(registry, env=None))["seedbed_inference_batch_rows"]
    found = {(sample.name, sample.labels.get("le")): sample.value for sample in family.samples}
    assert found == {
        ("seedbed_inference_batch_rows_bucket", "1.0"): 1,
        ("seedbed_inference_batch_rows_bucket", "2.0"): 3,
        ("seedbed_inference_batch_rows_bucket", "4.0"): 4,
        ("seedbed_inference_batch_rows_bucket", "+Inf"): 5,
        ("seedbed_inference_batch_rows_count", None): 5,
        ("seedbed_inference_batch_rows_sum", None): 16,
    }


def test_histogram_of_values_below_zero_has_no_sum() -> None:
    """A sum that may fall is no counter, and `rate` would take it for a restart."""
    registry, returns = Registry(), Histogram([-1, 0, 1])
    registry.register_spreads("episodes", lambda: {"returns": returns.spread()})
    returns.add(-7)
    family = exposed(PrometheusMetrics(registry, env=None))["seedbed_episode_return"]
    assert {sample.name for sample in family.samples} == {"seedbed_episode_return_bucket"}
    assert samples(family) == {("-1.0",): 1, ("0.0",): 1, ("1.0",): 1, ("+Inf",): 1}


def test_ratios_are_those_of_the_last_interval() -> None:
    prometheus = PrometheusMetrics(Registry(), env=None)
    assert "seedbed_inference_busy_ratio" not in exposed(prometheus)

    def note(**changes: float | None) -> None:
        interval = report(**changes)
        prometheus.note(interval, metrics(interval, {"queue/depth": 9}))

    note(inference_busy=0.25, training_data_wait=0.5, actors_idle=None)
    assert value(prometheus, "seedbed_inference_busy_ratio") == 0.25
    assert value(prometheus, "seedbed_training_data_wait_ratio") == 0.5
    families = exposed(prometheus)
    assert "seedbed_actors_idle_ratio" not in families
    # What the registry is asked for is not taken from a report that is as old as an interval.
    assert "seedbed_unroll_queue_depth" not in families
    note(inference_busy=0.75)
    assert value(prometheus, "seedbed_inference_busy_ratio") == 0.75


def test_frames_are_counted_where_a_step_has_a_known_number() -> None:
    registry = Registry()
    registry.register("episodes", lambda: {"steps_since_start": 25})
    for env in (None, "CartPole-v1"):
        assert "seedbed_environment_frames_total" not in exposed(PrometheusMetrics(registry, env=env))
    prometheus = PrometheusMetrics(registry, env="ALE/Pong-v5")
    assert value(prometheus, "seedbed_environment_frames_total") == 100


# Where they come from ---------------------------------------------------------------------------


def test_streams_and_leases_are_told_as_they_come_and_go(tmp_path: Path) -> None:
    registry = Registry()
    prometheus = PrometheusMetrics(registry, env=None)
    with (
        LogLines("learner.serving") as log,
        FakeLearner(f"unix:{tmp_path}/s", lease_seconds=0.2) as learner,
    ):
        registry.register("serving", learner.server.statistics)
        with Stream(learner.address) as stream:
            token = stream.open(2).session_token
            stream.act(step(1, 10, 11))
            assert value(prometheus, "seedbed_actors") == 1
            assert value(prometheus, "seedbed_environments_connected") == 2
            with Stream(learner.address) as other:
                other.open(2, resume_token=token)
                stream.ended()
        log.wait_for("lease expired")
        assert value(prometheus, "seedbed_actors") == 0
        assert value(prometheus, "seedbed_sessions_begun_total") == 1
        assert value(prometheus, "seedbed_leases_resumed_total") == 1
        assert value(prometheus, "seedbed_leases_lost_total") == 1
        assert value(prometheus, "seedbed_event_loop_cpu_seconds_total") > 0
        errors = samples(exposed(prometheus)["seedbed_stream_errors_total"])
        assert errors == {**dict.fromkeys(errors, 0), ("unavailable",): 1}
        with Stream(learner.address) as stream:
            stream.send()
            stream.ended()
        errors = samples(exposed(prometheus)["seedbed_stream_errors_total"])
        assert errors[("invalid_argument",)] == 1


@pytest.mark.parametrize("engine", ["numpy", "tensorflow"])
def test_policy_calls_of_the_event_loop_are_told(engine: PolicyEngine) -> None:
    story = Story(engine=engine)
    story.acting.policy.efficiency = [0.25] * (MAX_ROWS + 1)
    registry = Registry()
    registry.register("acting", story.acting.statistics)
    prometheus = PrometheusMetrics(registry, env=None)
    assert value(prometheus, "seedbed_event_loop_policy_cpu_seconds_total") == 0
    story.start()
    begun = time.thread_time()
    story.ask([0, 1], [10, 20], LEASE_START)
    spent = time.thread_time() - begun
    story.end()
    seconds = value(prometheus, "seedbed_event_loop_policy_cpu_seconds_total")
    assert (0 < seconds < spent) if engine == "numpy" else seconds == 0
    assert value(prometheus, "seedbed_event_loop_policy_load_seconds_total") == seconds / 4


def test_parts_of_the_process_report_what_is_exported_of_them(tmp_path: Path) -> None:
    reported = {
        "actors": LocalActors([], start_thread=lambda name, run: None, environ={}).statistics(),
        "recording": FileRecorder(tmp_path / "r", 10**6, on_failure=lambda error: None).statistics(),
    }
    for metric in METRICS:
        part, _, key = metric.source.partition("/")
        assert part not in reported or key in reported[part], metric.name


def test_intervals_report_what_is_exported_of_them() -> None:
    sources = {metric.source for metric in METRICS if "/" not in metric.source}
    assert sources - {field.name for field in fields(Report)} == {"frames"}


# The page ---------------------------------------------------------------------------------------

Row = tuple[str, str, str]


def documented() -> dict[str, Row]:
    """Type, labels and meaning of each metric in the page's tables, by its name."""
    row = re.compile(r"^\| `(\w+)` \| (\w+) \| (.*?) \| .*? \| (.*?) \|", re.MULTILINE)
    found = row.findall(PAGE.read_text(encoding="utf-8"))
    assert len({name for name, *_ in found}) == len(found)
    return {name: (kind, labels, meaning) for name, kind, labels, meaning in found}


def exported() -> Mapping[str, Row]:
    rows = {}
    for name, family in exposed(everything()).items():
        labels = {label for sample in family.samples for label in sample.labels if label != "le"}
        rows[name] = (family.type, ", ".join(f"`{label}`" for label in sorted(labels)) or "-", name)
    return rows


def test_the_page_has_what_is_exported_and_no_more() -> None:
    page = {name: row[:2] for name, row in documented().items()}
    assert page == {name: row[:2] for name, row in exported().items()}


def test_the_page_says_what_the_scrape_says() -> None:
    page = documented()
    for metric in METRICS:
        assert page[metric.name][2] == metric.meaning.removesuffix("."), metric.name
