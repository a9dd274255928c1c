"""Processes are killed and stopped and networks break, and nothing is lost that need not be.

The faults that others' users met, each by itself, are in test_known_faults.py.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.faults.cluster import Cluster, Settings
from benchmarks.faults.world import ENVIRONMENTS_PER_ACTOR
from tests.integration.processes import ROOT

CUT_SECONDS = 5.0
LEASE_SECONDS = 30.0
ENVIRONMENTS = 2


@pytest.mark.timeout(400)
def test_one_of_each_fault(tmp_path: Path) -> None:
    """The network of one actor is down for 5 s, another one's stream is half-open meanwhile, and a third
    actor is stopped, ended and killed; then the learner is killed, and the run ends at its target."""
    settings = Settings(tmp_path, actors=4, environments=ENVIRONMENTS, lease_seconds=LEASE_SECONDS)
    with Cluster(settings) as cluster:
        cluster.until_active()
        cut, silent, unlucky, witness = cluster.actors
        cluster.sever(cut)
        cut.proxy.reset()  # Its connection is gone, too: it looks for another one all the while.
        mended = time.monotonic() + CUT_SECONDS
        cluster.half_open(silent)

        cluster.reset_streams(unlucky)
        cluster.until_active([unlucky, witness])
        cluster.delay(unlucky, 0.05)
        cluster.until_active([unlucky], rows=3 * ENVIRONMENTS)
        cluster.delay(unlucky, 0)
        cluster.stop_actor(unlucky)
        cluster.until_active([witness])
        cluster.continue_actor(unlucky)
        cluster.until_active([unlucky])
        cluster.end_actor(unlucky)
        cluster.until_active([unlucky])
        cluster.kill_actor(unlucky)
        cluster.cut_streams(witness)
        cluster.until_active([unlucky, witness])

        cluster.until(lambda: time.monotonic() >= mended, "the end of the cut")
        cut.proxy.heal()
        cluster.until_active([cut, silent])
        leases_before = leases(cluster)
        cluster.until_saved()
        target = cluster.learner.env_steps() + 1000
        cluster.kill_learner(total_steps=target)
        proof = cluster.finish()
        reached = cluster.learner.env_steps()

    assert proof.faults == []
    for actor in (cut, silent, witness):
        for index in range(ENVIRONMENTS):
            number = actor.incarnation * ENVIRONMENTS_PER_ACTOR + index
            assert leases_before[number] == 1, "its trajectory goes on unbroken"
    assert proof.figures["between"] <= ENVIRONMENTS * len(cluster.actors), "none but at the restart"
    assert proof.figures["learners"] == 2
    assert proof.figures["environments"] == 6 * ENVIRONMENTS
    # Of how many steps is luck: it may end right after an unroll.
    assert proof.figures["leases_dropped"] >= ENVIRONMENTS, "the ended actor's leases are over"
    assert proof.figures["trained"] > 0
    assert reached >= target


def leases(cluster: Cluster) -> dict[int, int]:
    """Leases so far, by environment."""
    cluster.poll()
    return cluster.learner.prove().leases


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_minutes_of_faults_with_eight_actors() -> None:
    command = [sys.executable, "-m", "benchmarks.chaos", "--minutes=10", "--actors=8", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["lost_nothing"]
    assert result["env_steps"] >= result["target_env_steps"]
    for fault in (
        "actors killed", "actors ended", "actors stopped", "streams reset", "streams cut",
        "streams half-open", "networks down", "networks slow",
    ):  # fmt: skip
        assert result["done"][fault] > 0
    assert result["done"]["learners killed"] > 5


def test_options_out_of_range_are_refused() -> None:
    command = [sys.executable, "-m", "benchmarks.chaos", "--actors=1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--actors 1: expected" in done.stderr
