"""What a learner that really trains exports, whoever else talks to its port."""

import functools
import signal
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from learner.telemetry.exported import METRICS
from tests.integration.processes import Launcher, Process, options, until
from tests.integration.test_many_learners import start
from tests.integration.test_replay import SMALL

ANYWHERE = "127.0.0.1:0"

FRAMES = "seedbed_environment_frames_total"

JUNK = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    bytes(range(256)) + b"\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nA: " + b"a" * 20_000,
    b"GET /metrics HTTP/1.1\r\n",
)


def port_of(process: Process) -> int:
    return int(process.says(r"status page on http://127.0.0.1:0/ \(port (\d+)\)")[1])


def scrape(port: int) -> dict[str, Metric]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {
            f"{family.name}_total" if family.type == "counter" else family.name: family
            for family in families
        }


def is_built(port: int) -> bool:
    """Whether all parts of the learner export: this is of the last one."""
    return "seedbed_policy_lag_versions" in scrape(port)


def counts(metrics: dict[str, Metric]) -> dict[tuple[str, str], float]:
    """All that must never fall."""
    return {
        (sample.name, str(sample.labels)): sample.value
        for family in metrics.values()
        if family.type in ("counter", "histogram")
        for sample in family.samples
        # Prometheus-client's own note of when a counter began.
        if not sample.name.endswith("_created")
    }


def test_everything_is_exported_and_no_count_falls(launch: Launcher, tmp_path: Path) -> None:
    chosen = {**SMALL, "total_steps": 10_000_000, "eval_interval": 100, "eval_episodes": 1}
    learner = launch.seedbed(
        "train",
        *options(**chosen, logdir=tmp_path / "run", record=tmp_path / "recording"),
        *options(metrics_listen=ANYWHERE, checkpoint_interval_seconds=0.2),
    )
    port = port_of(learner)
    expected = {metric.name for metric in METRICS} - {FRAMES}

    def missing() -> set[str]:
        return expected - set(scrape(port))

    until(lambda: not missing(), lambda: f"metrics that are missing: {missing()}")
    before = counts(scrape(port))
    for junk in JUNK:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(junk)
    updates = "seedbed_updates_total", "{}"
    until(lambda: counts(scrape(port))[updates] > before[updates], "an update")
    after = counts(scrape(port))
    fallen = {key: (value, after.get(key)) for key, value in before.items() if after[key] < value}
    assert not fallen
    learner.signal(signal.SIGTERM)
    assert learner.status() == 0, learner.stderr


def test_frames_are_exported_where_they_are_known(launch: Launcher, tmp_path: Path) -> None:
    learner = launch.seedbed(
        "learner",
        *options(env="ALE/Pong-v5", logdir=tmp_path / "run", listen=f"unix:{tmp_path}/s"),
        *options(metrics_listen=ANYWHERE, inference_batch_size=1),
    )
    port = port_of(learner)
    until(lambda: "seedbed_environment_steps_total" in scrape(port), "a learner that counts steps")
    assert FRAMES in scrape(port)
    learner.signal(signal.SIGTERM)
    assert learner.status() == 0, learner.stderr


@pytest.mark.slow
def test_of_a_group_the_first_alone_has_checkpoints_that_grow_old(
    launch: Launcher, tmp_path: Path
) -> None:
    """Else the alert about them would never end for the others."""
    learners = start(launch, tmp_path, total_steps=10_000_000, metrics_listen=ANYWHERE)
    ports = [port_of(learner) for learner in learners]
    for port in ports:
        until(functools.partial(is_built, port), "a learner that is built")
    kept = [[name for name in scrape(port) if "checkpoint" in name] for port in ports]
    assert "seedbed_checkpoint_age_seconds" in kept[0]
    assert kept[1] == []
    learners[1].signal(signal.SIGTERM)
    assert learners[1].status() == 0, learners[1].stderr
    assert learners[0].status() == 1, learners[0].stderr
