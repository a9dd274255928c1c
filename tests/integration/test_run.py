"""A run from its first line to its summary, and what becomes of its directory afterwards."""

import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from learner import app
from learner.threads import Threads
from learner.training.checkpoint import Checkpoints
from tests.integration.commands import Done, read_json, read_metrics, seedbed
from tests.integration.processes import options

SUMMARY_FIELDS = {
    "env", "agent", "seed", "env_steps", "seconds", "steps_per_second", "episodes",
    "mean_return_100", "solved_env_steps", "solved_seconds",
}  # fmt: skip


def train(logdir: Path, **changes: object) -> Done:
    """A short run of CartPole."""
    chosen = {
        "env": "CartPole-v1",
        "logdir": logdir,
        "num_actors": 1,
        "envs_per_actor": 4,
        "total_steps": 1500,
        "log_interval_seconds": 0.2,
        "checkpoint_interval_seconds": 0.1,
        "keep_checkpoints": 2,
        **changes,
    }
    return seedbed("train", *options(**chosen))


def checkpoint_paths(logdir: Path) -> list[Path]:
    return Checkpoints(logdir / "checkpoints", keep=9).paths()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """A run that has reached its end; to be left as it is."""
    logdir = tmp_path_factory.mktemp("runs") / "finished"
    return logdir, train(logdir)


@pytest.fixture
def logdir(finished: tuple[Path, Done], tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return shutil.copytree(finished[0], tmp_path / "run")


def test_what_a_run_leaves(finished: tuple[Path, Done]) -> None:
    logdir, done = finished
    assert done.status == 0, done.stderr
    assert done.stdout == ""
    assert f"new run in {logdir}" in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.endswith("finished: --total-steps 1500 is reached; saved")

    summary = read_json(logdir / "summary.json")
    assert set(summary) >= SUMMARY_FIELDS
    assert summary["env"] == "CartPole-v1"
    assert (summary["agent"], summary["seed"]) == ("vtrace", 1)
    assert summary["env_steps"] >= 1500
    assert summary["steps_per_second"] == pytest.approx(summary["env_steps"] / summary["seconds"])
    assert summary["solved_env_steps"] is None
    assert summary["solved_seconds"] is None
    # Every step earns 1, so the steps of finished episodes are their returns.
    earned = summary["mean_return_100"] * min(summary["episodes"], 100)
    assert 0 < earned <= summary["env_steps"]

    metrics = read_metrics(logdir)
    steps = [line["env_steps"] for line in metrics]
    assert steps == sorted(steps)
    # The last line is written while the actors still step.
    assert 0 < steps[-1] <= summary["env_steps"]
    assert {"seconds", "mean_return_100", "loss", "queue/depth"} <= set(metrics[-1])

    (newest, _) = reversed(checkpoint_paths(logdir))
    assert Checkpoints(logdir / "checkpoints", 2).load(newest).version == summary["policy_version"]
    assert list((logdir / "tensorboard").glob("events.out.tfevents.*"))
    assert (logdir / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    config = tomllib.loads((logdir / "config.toml").read_text())
    assert (config["env"], config["total_steps"]) == ("CartPole-v1", 1500)


def test_finished_run_says_so(logdir: Path) -> None:
    before = read_json(logdir / "summary.json")
    for arguments in (
        options(config=logdir / "config.toml", logdir=logdir),
        options(env="CartPole-v1", logdir=logdir, total_steps=1500),
    ):
        done = seedbed("train", *arguments)
        assert done.status == 0, done.stderr
        assert (
            f"{logdir}: this run has reached its end already, --total-steps 1500: raise that to go on"
            in (done.stderr)
        )
    assert read_json(logdir / "summary.json") == before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"listen": "0.0.0.0:0"}, "can be reached from other machines"),
        ({"metrics_listen": "7790"}, "--metrics-listen 7790: expected HOST:PORT"),
        ({"torso": "deep"}, "--torso deep needs an image"),
        ({"env": "CartPole-v9"}, "environment CartPole-v9: "),
    ],
)
def test_a_start_that_fails_leaves_nothing(tmp_path: Path, changes: dict[str, str], said: str) -> None:
    done = train(tmp_path / "runs" / "run", **changes)
    assert done.status in (1, 2)
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["train", "learner"])
def test_a_missing_environment_is_said_once_and_ends_the_start(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless() -> None:
        while True:
            pass

    monkeypatch.setattr("learner.run.import_tensorflow", endless)
    chosen = {"env": "CartPole-v9", "logdir": tmp_path / "run", "listen": f"unix:{tmp_path}/s"}
    actors = {"num_actors": 2, "eval_interval": 100} if command == "train" else {}
    done = seedbed(command, *options(**chosen, **actors))
    assert done.status == 1
    assert done.stderr.count("environment CartPole-v9: ") == 1
    assert "environment CartPole-v9: " in done.stderr.splitlines()[-1]


def test_steps_without_a_checkpoint_are_lost_with_a_warning(logdir: Path) -> None:
    for path in checkpoint_paths(logdir):
        path.unlink()
    done = train(logdir, total_steps=200)
    words = f"an earlier process of the run in {logdir} left no checkpoint: it begins at step 0 again"
    assert words in done.stderr


def test_run_goes_on_where_it_stopped(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read_json(logdir / "summary.json")
    saved = Checkpoints(logdir / "checkpoints", 2).load_latest()
    assert saved is not None
    restored: dict[str, np.ndarray] = {}
    start = app.Learner.start

    def watched_start(learner: app.Learner, threads: Threads) -> None:
        restored.update((name, v.numpy()) for name, v in learner.agent.variables.items())
        assert learner.weights.version == learner.trainer.version == saved.version
        start(learner, threads)

    monkeypatch.setattr(app.Learner, "start", watched_start)
    done = train(logdir, total_steps=before["env_steps"] + 600)
    assert done.status == 0, done.stderr
    assert f"resuming {logdir} at environment step {before['env_steps']:,}" in done.stderr
    assert f"version {before['policy_version']:,}" in done.stderr

    assert set(restored) == set(saved.arrays)
    for name, array in saved.arrays.items():
        np.testing.assert_array_equal(restored[name], array, err_msg=name)
    after = read_json(logdir / "summary.json")
    assert after["env_steps"] >= before["env_steps"] + 600
    assert after["policy_version"] > before["policy_version"]
    assert after["episodes"] > before["episodes"]
    assert after["seconds"] > before["seconds"]
    steps = [line["env_steps"] for line in read_metrics(logdir)]
    assert steps == sorted(steps)


def test_other_settings_are_refused(logdir: Path) -> None:
    done = train(logdir, learning_rate=0.5, seed=2, total_steps=9000)
    assert done.status == 2
    assert "seed was 1 and is now 2" in done.stderr
    assert "learning_rate was" in done.stderr
    assert "is now 0.5" in done.stderr
    assert "batch_size" not in done.stderr
    assert tomllib.loads((logdir / "config.toml").read_text())["seed"] == 1


def test_damaged_newest_checkpoint(logdir: Path) -> None:
    older, newest = checkpoint_paths(logdir)
    newest.write_bytes(newest.read_bytes()[:-200])
    version = Checkpoints(logdir / "checkpoints", 2).load(older).version
    done = train(logdir, total_steps=3000)
    assert done.status == 0, done.stderr
    assert f"checkpoint {newest} is damaged" in done.stderr
    assert "going back to the checkpoint before it" in done.stderr
    assert f"(version {version:,})" in done.stderr
    assert read_json(logdir / "summary.json")["policy_version"] > version


def test_no_checkpoint_that_is_whole(logdir: Path) -> None:
    for path in checkpoint_paths(logdir):
        path.write_bytes(b"damaged")
    files = {path: path.stat().st_mtime_ns for path in (logdir / "checkpoints").iterdir()}
    metrics = read_metrics(logdir)
    done = train(logdir, total_steps=3000)
    assert done.status == 1
    assert "none of the 2 checkpoints" in done.stderr
    assert "listening" not in done.stderr
    assert {path: path.stat().st_mtime_ns for path in (logdir / "checkpoints").iterdir()} == files
    assert read_metrics(logdir) == metrics


def test_solved_run_ends_and_stays_ended(tmp_path: Path) -> None:
    done = train(tmp_path / "run", stop_return=5, total_steps=100_000)
    assert done.status == 0, done.stderr
    assert done.stderr.splitlines()[-1].endswith("finished: --stop-return 5 is reached; saved")
    summary = read_json(tmp_path / "run" / "summary.json")
    assert 100 <= summary["solved_env_steps"] <= summary["env_steps"] < 100_000
    assert 0 < summary["solved_seconds"] <= summary["seconds"]
    assert summary["stop_return"] == 5
    again = train(tmp_path / "run", stop_return=5, total_steps=100_000)
    assert again.status == 0
    assert "this run has reached its end already, --stop-return 5: raise that to go on" in again.stderr


def test_nothing_is_traced_after_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = 0
    at_start: list[int] = []
    graph_class = tf.__internal__.FuncGraph
    make, start = graph_class.__init__, app.Learner.start

    def counting_make(*arguments: object, **keywords: object) -> None:
        nonlocal graphs
        graphs += 1
        make(*arguments, **keywords)

    def watched_start(learner: app.Learner, threads: Threads) -> None:
        at_start.append(graphs)
        start(learner, threads)

    monkeypatch.setattr(graph_class, "__init__", counting_make)
    monkeypatch.setattr(app.Learner, "start", watched_start)
    # Three environments in two sessions: batches of one, two and three rows, ends of episodes.
    done = train(tmp_path / "run", num_actors=3, envs_per_actor=1, lstm_size=8)
    assert done.status == 0, done.stderr
    assert at_start[0] >= 3, "expected graphs for acting, training and publishing"
    assert graphs == at_start[0]


def test_atari_with_the_standard_preprocessing(tmp_path: Path) -> None:
    logdir = tmp_path / "run"
    arguments = options(
        env="ALE/Pong-v5", logdir=logdir, total_steps=600, num_actors=1, envs_per_actor=4
    )
    done = seedbed("train", *arguments)
    assert done.status == 0, done.stderr
    config = tomllib.loads((logdir / "config.toml").read_text())
    assert (config["frame_stack"], config["torso"], config["reward_clip"]) == (4, "shallow", 1.0)
    assert read_json(logdir / "summary.json")["env_steps"] >= 600
    checkpoint = Checkpoints(logdir / "checkpoints", 1).load_latest()
    assert checkpoint is not None
    assert checkpoint.metadata["spec"]["observation"][0]["shape"] == [84, 84, 1]
