"""The learner and its actors as processes of their own, as on several machines."""

import json
import signal
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from protos.version import version
from tests.integration.commands import read_json, seedbed
from tests.integration.processes import Launcher, options, until

pytestmark = pytest.mark.timeout(240)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_actors_wait_for_the_learner_and_end_with_it(launch: Launcher, tmp_path: Path) -> None:
    address, logdir = f"127.0.0.1:{free_port()}", tmp_path / "run"
    actors = [
        launch.actor(*options(server=address, env="CartPole-v1", num_envs=1, seed=seed))
        for seed in (1, 2)
    ]
    for actor in actors:
        actor.says("waiting for the learner at")
    chosen = {"env": "CartPole-v1", "total_steps": 6_000}
    learner = launch.seedbed("learner", *options(listen=address, logdir=logdir, **chosen))
    learner.says("listening on")

    # Another one gets neither its port nor its directory.
    other = tmp_path / "other"
    done = seedbed("learner", *options(listen=address, logdir=other, **chosen))
    assert done.status == 2
    assert f"--listen {address}: expected a free address" in done.stderr
    elsewhere = options(listen=f"unix:{tmp_path}/s", metrics_listen=address)
    done = seedbed("learner", *elsewhere, *options(logdir=other, **chosen))
    assert done.status == 2
    assert f"--metrics-listen {address}: expected a free address" in done.stderr
    done = seedbed("learner", *options(listen=f"unix:{tmp_path}/s", logdir=logdir, **chosen))
    assert done.status == 2
    assert f"--logdir {logdir} is in use by the learner with process id {learner.pid}" in done.stderr

    assert learner.status() == 0, learner.stderr
    for actor in actors:
        assert actor.status() == 0, actor.stderr
        assert "connected at" in actor.stderr
        assert "the run has ended" in actor.stderr
    summary = read_json(logdir / "summary.json")
    assert summary["env_steps"] >= 6_000
    assert learner.stderr.count("brings 1 environment") == 2


def test_learner_restarts_under_its_actors(launch: Launcher, tmp_path: Path) -> None:
    """Without --env, so that the first actor's specs decide."""
    address, logdir = f"unix:{tmp_path}/s", tmp_path / "run"
    command = options(
        listen=address,
        logdir=logdir,
        total_steps=10_000_000,
        batch_size=4,
        checkpoint_interval_seconds=0.2,
        log_interval_seconds=0.2,
        metrics_listen="127.0.0.1:0",
    )
    first = launch.seedbed("learner", *command)
    port = int(first.says(r"status page on http://127.0.0.1:0/ \(port (\d+)\)")[1])
    first.says("starting TensorFlow")
    assert "report" not in read_status(port), "there is nothing to report before training"
    first.says("INFO waiting for the first actor\n")
    actors = [
        launch.actor(
            *options(server=address, env="CartPole-v1", num_envs=1, seed=seed, name=f"pod {seed}")
        )
        for seed in (1, 2)
    ]
    first.says("brings 1 environment\\n(?s:.*)brings 1 environment\\n")
    until(lambda: any((logdir / "checkpoints").glob("*.npz")), "a checkpoint")
    status = until(lambda: shows_all(read_status(port)), "a status with rates and a checkpoint")
    assert [each["client"] for each in status["sessions"]["listed"]] == ["pod 1", "pod 2"]
    assert status["sessions"]["versions"] == [[version(), 2]]
    assert status["run"]["phase"] == "training"
    # The first specs that came are the run's: others are refused, and hold up nobody.
    stranger = launch.actor(*options(server=address, env="MountainCar-v0", num_envs=1))
    assert stranger.status() == 1
    assert "spec: expected observation (float32[4]" in stranger.stderr

    done = seedbed("evaluate", *options(logdir=logdir, env="CartPole-v1", episodes=3))
    assert done.status == 0, done.stderr
    assert len(json.loads(done.stdout)["returns"]) == 3

    first.signal(signal.SIGTERM)
    assert first.status() == 0, first.stderr
    summary = read_json(logdir / "summary.json")
    at_version = f"(version {summary['policy_version']:,})"

    second = launch.seedbed("learner", *command)
    until(
        lambda: second.stderr.count("brings 1 environment\n") == 2,
        lambda: "both actors; they say:\n" + "\n".join(each.stderr for each in [*actors, second]),
    )
    assert (
        f"resuming {logdir} at environment step {summary['env_steps']:,} {at_version}" in second.stderr
    )
    until(lambda: f"step_{summary['policy_version']:09d}" not in newest(logdir), "a newer checkpoint")
    assert all(actor.running for actor in actors)
    second.signal(signal.SIGINT)
    assert second.status() == 130, second.stderr
    assert read_json(logdir / "summary.json")["env_steps"] > summary["env_steps"]

    actors[0].signal(signal.SIGTERM)
    actors[1].signal(signal.SIGINT)
    assert [actor.status() for actor in actors] == [0, 130]
    for actor in actors:
        assert "Traceback" not in actor.stderr


def read_status(port: int) -> dict[str, Any]:
    """What the learner says of itself."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status.json", timeout=60) as answer:
        status: dict[str, Any] = json.load(answer)
        return status


def shows_all(status: dict[str, Any]) -> dict[str, Any] | None:
    """`status`, if training is under way in it."""
    listed = status.get("sessions", {"listed": []})["listed"]
    rates = [each["steps_per_second"] or 0 for each in listed]
    whole = len(rates) == 2 and min(rates) > 0 and status["curve"] and status["checkpoints_saved"]
    return status if whole else None


def newest(logdir: Path) -> str:
    return max(path.name for path in (logdir / "checkpoints").glob("*.npz"))
