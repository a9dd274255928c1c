"""Learners that train together: equal weights, one end for all, and a loss that ends the others."""

import json
import re
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from learner.training.checkpoint import Checkpoints
from tests.integration import updating
from tests.integration.commands import read_json
from tests.integration.processes import Environ, Launcher, Process, options
from tests.integration.test_separate import free_port

pytestmark = pytest.mark.timeout(240)

UPDATE = """
import os
import sys
from learner.cluster import read_cluster, wait_for_others
from learner.group import join

cluster = read_cluster(os.environ)
assert wait_for_others(cluster, stopped=lambda: False)
group = join(cluster)
# Tests' modules make tensors, before which it has to join.
from tests.integration import updating

updating.write(group, sys.argv[1])
"""

TRAIN = """
import sys
import numpy as np
from learner import app
from learner.__main__ import main

kept = app.Learner.save

def save(self):
    version, variables = self.trainer.version, self.agent.variables
    np.savez(sys.argv[1], version=version, **{name: v.numpy() for name, v in variables.items()})
    return kept(self)

app.Learner.save = save
sys.exit(main(["train", *sys.argv[2:]]))
"""
"""`seedbed train` that leaves its variables in a file whenever it could save: only the first learner
does."""


def cluster(size: int = 2) -> list[Environ]:
    """The environment of each learner of a group on this machine."""
    workers = [f"127.0.0.1:{free_port()}" for _ in range(size)]
    tasks = [{"type": "worker", "index": index} for index in range(size)]
    return [{"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task})} for task in tasks]


def start(launch: Launcher, folder: Path, **chosen: object) -> list[Process]:
    """Two learners of one run, each with an actor of its own."""
    chosen = {"env": "CartPole-v1", "logdir": folder / "run", "num_actors": 1, "seed": 3, **chosen}
    return [
        launch.python(
            "-c", TRAIN, str(folder / f"variables-{index}.npz"), *options(**chosen), environ=each
        )
        for index, each in enumerate(cluster())
    ]


def assert_alike(arrays: Sequence[dict[str, np.ndarray]]) -> None:
    """Bit by bit."""
    one, other = arrays
    assert set(one) == set(other)
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], name)


def load(folder: Path, name: str) -> list[dict[str, np.ndarray]]:
    return [dict(np.load(folder / f"{name}-{index}.npz")) for index in range(2)]


def test_two_with_parts_of_a_batch_learn_what_one_does_of_the_whole(
    launch: Launcher, tmp_path: Path
) -> None:
    processes = [
        launch.python("-c", UPDATE, f"{tmp_path}/part-{index}.npz", environ=each)
        for index, each in enumerate(cluster())
    ]
    for process in processes:
        assert process.status() == 0, process.stderr
    parts = load(tmp_path, "part")
    assert_alike(parts)
    assert str(parts[0].pop("text")) == "of learner 0"
    for agent in updating.AGENTS:
        for name, expected in updating.alone(agent).items():
            found = parts[0][f"{agent}:{name}"]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=f"{agent}:{name}")


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["vtrace", "ppo", "a2c"])
def test_two_solve_cartpole_with_the_same_weights(agent: str, launch: Launcher, tmp_path: Path) -> None:
    chosen = {"agent": agent, "stop_return": 150, "total_steps": 400_000}
    first, second = start(launch, tmp_path, **chosen)
    assert (first.status(200), second.status()) == (0, 0), first.stderr + second.stderr
    variables = load(tmp_path, "variables")
    assert variables[0]["version"] >= 10
    assert_alike(variables)
    summaries = [read_json(tmp_path / name / "summary.json") for name in ("run", "run-learner-1")]
    assert max(summary["mean_return_100"] for summary in summaries) >= 150, summaries
    assert list((tmp_path / "run-learner-1" / "checkpoints").iterdir()) == []
    saved = Checkpoints(tmp_path / "run" / "checkpoints", 9).load_latest()
    assert saved is not None
    version = variables[1].pop("version")
    assert (saved.version, set(saved.arrays)) == (version, set(variables[1]))
    for name, array in saved.arrays.items():
        np.testing.assert_array_equal(array, variables[1][name], name)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_the_loss_of_one_ends_the_other_and_both_go_on_from_the_checkpoint(
    lost: int, launch: Launcher, tmp_path: Path
) -> None:
    chosen = {"total_steps": 10_000_000, "checkpoint_interval_seconds": 0.5, "log_interval_seconds": 0.2}
    learners = start(launch, tmp_path, **chosen)
    learners[1 - lost].says("step [1-9][0-9],")
    learners[lost].signal(signal.SIGKILL)
    left = learners[1 - lost]
    assert left.status() == 1, left.stderr
    assert "another learner of the group is gone, so that this one ends too" in left.stderr

    saved = Checkpoints(tmp_path / "run" / "checkpoints", 9).load_latest()
    assert saved is not None
    assert saved.version > 0
    first, second = start(launch, tmp_path, **chosen)
    resumed = first.says(r"resuming .* at environment step ([\d,]+) \(version ([\d,]+)\)")
    assert int(resumed[2].replace(",", "")) == saved.version
    before = int(resumed[1].replace(",", ""))
    later = second.says(r"INFO step ([\d,]+) of 10,000,000")
    assert int(later[1].replace(",", "")) > before > 0

    second.signal(signal.SIGTERM)
    assert second.status() == 0, second.stderr
    assert first.status() == 1, first.stderr
    assert "learner 1 of the group was to end before the run's end, and all end with it" in first.stderr
    end = re.findall(r"([\d,]+) environment steps in", first.stderr)
    assert int(end[0].replace(",", "")) > before


@pytest.mark.slow
def test_a_learner_ends_by_a_signal_while_it_waits_for_the_others(
    launch: Launcher, tmp_path: Path
) -> None:
    environ = cluster()
    chosen = options(env="CartPole-v1", num_actors=1, logdir=tmp_path / "run")
    for index in range(2):
        waiting = launch.python("-m", "learner", "train", *chosen, environ=environ[index])
        waiting.says(f"learner {index} of a group of 2 waits for the others")
        waiting.signal(signal.SIGTERM)
        assert waiting.status() == 0, waiting.stderr


@pytest.mark.slow
def test_learners_with_other_settings_do_not_begin(launch: Launcher, tmp_path: Path) -> None:
    chosen = {"env": "CartPole-v1", "num_actors": 1, "logdir": tmp_path / "run"}
    _, second = (
        launch.python(
            "-m", "learner", "train", *options(**chosen, batch_size=8 + index), environ=environ
        )
        for index, environ in enumerate(cluster())
    )
    assert second.status() == 2, second.stderr
    assert (
        "learner 1 has other settings than the first of its group: batch_size was 8 and is now 9"
        in second.stderr
    )
