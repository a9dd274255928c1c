"""The run directory: who may use it, what it holds, and that a resumed run fits."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from learner.config import LearnerOptions, TrainOptions
from learner.telemetry.episodes import EpisodeTracker
from learner.telemetry.learning_curve import Curve, CurvePoint
from learner.telemetry.report import Report
from learner.telemetry.run_directory import RunDirectory, checkpoints_folder, read_config
from learner.telemetry.summary import Summary, summarize
from learner.training.checkpoint import Checkpoints
from protos.errors import ConfigError
from protos.options import parse
from tests.learner.telemetry.disk import full_at

OPTIONS = TrainOptions(env="CartPole-v1", stop_return=475.0, hidden_sizes=(32, 16), progress="none")


def test_a_new_run_creates_what_it_needs(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "runs" / "cartpole", OPTIONS)
    assert not run.resumed
    assert run.checkpoints.is_dir()
    assert run.checkpoints == checkpoints_folder(tmp_path / "runs" / "cartpole")
    assert tomllib.loads((run.path / "config.toml").read_text())["stop_return"] == 475.0
    run.close()
    run.close()


@pytest.mark.parametrize(
    "options",
    [
        OPTIONS,
        TrainOptions(env="ALE/Pong-v5", logdir="runs/x y", learning_rate=6e-4, hidden_sizes=(7,)),
        TrainOptions(env="module:make(\"a\", 'b')", listen="unix:/tmp/s", optimizer_epsilon=1e-20),
    ],
)
def test_config_is_accepted_again_and_gives_the_same_options(
    tmp_path: Path, options: TrainOptions
) -> None:
    RunDirectory(tmp_path, options).close()
    argv = ["--config", str(tmp_path / "config.toml")]
    assert parse(TrainOptions, argv, prog="seedbed train", description="") == options


def test_the_same_settings_go_on_and_free_ones_may_change(tmp_path: Path) -> None:
    RunDirectory(tmp_path, OPTIONS).close()
    longer = replace(OPTIONS, total_steps=2_000_000, num_actors=5)
    run = RunDirectory(tmp_path, longer)
    assert read_config(tmp_path)["total_steps"] == 2_000_000
    run.close()


@pytest.mark.parametrize(
    ("lines", "resumed"),
    [
        ("", False),
        ('{"env_steps": 0}\n', False),
        ('{"env_steps": 0}\n{"env_steps": 8, "loss": null}\n', True),
        ('{"env_steps": 8}\n{"env_st', True),
        ("no JSON\n[]\n", False),
    ],
)
def test_a_run_is_resumed_where_an_earlier_process_made_steps(
    tmp_path: Path, lines: str, resumed: bool
) -> None:
    RunDirectory(tmp_path, OPTIONS).close()
    (tmp_path / "metrics.jsonl").write_text(lines)
    run = RunDirectory(tmp_path, OPTIONS)
    assert run.resumed == resumed
    run.close()


def test_a_run_with_a_checkpoint_is_resumed(tmp_path: Path) -> None:
    RunDirectory(tmp_path, OPTIONS).close()
    (tmp_path / "checkpoints" / "step_000000001.npz").touch()
    run = RunDirectory(tmp_path, OPTIONS)
    assert run.resumed
    run.close()


def test_what_a_run_that_never_began_made_is_removed(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "runs" / "cartpole", OPTIONS)
    run.discard_unused()
    run.close()
    assert list(tmp_path.iterdir()) == []


def test_what_others_made_stays(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    run = RunDirectory(tmp_path / "runs" / "cartpole", OPTIONS)
    (tmp_path / "runs" / "cartpole" / "notes.txt").touch()
    run.discard_unused()
    run.close()
    assert [path.name for path in (tmp_path / "runs").rglob("*")] == ["cartpole", "notes.txt"]
    RunDirectory(tmp_path / "other", OPTIONS).close()
    again = RunDirectory(tmp_path / "other", OPTIONS)
    again.discard_unused()
    again.close()
    assert (tmp_path / "other" / "config.toml").exists()


@pytest.mark.parametrize("result", ["checkpoints/step_000000001.npz", "metrics.jsonl", "summary.json"])
def test_a_run_that_left_something_is_kept(tmp_path: Path, result: str) -> None:
    run = RunDirectory(tmp_path / "run", OPTIONS)
    (run.path / result).write_text("{}\n")
    run.discard_unused()
    run.close()
    assert (run.path / result).exists()
    assert (run.path / "config.toml").exists()


def test_other_settings_are_refused_with_what_differs_and_the_way_out(tmp_path: Path) -> None:
    RunDirectory(tmp_path, OPTIONS).close()
    (tmp_path / "checkpoints" / "step_000000001.npz").touch()
    before = (tmp_path / "config.toml").read_bytes()
    with pytest.raises(ConfigError) as refused:
        RunDirectory(tmp_path, replace(OPTIONS, seed=2, hidden_sizes=(64,)))
    assert str(refused.value) == (
        f"--logdir {tmp_path} holds a run with other settings: "
        "hidden_sizes was [32, 16] and is now [64]; seed was 1 and is now 2. "
        "Give this run a --logdir of its own, or go on with the old settings: "
        f"--config {tmp_path}/config.toml"
    )
    assert (tmp_path / "config.toml").read_bytes() == before
    # The refusal has let go of the lock.
    RunDirectory(tmp_path, OPTIONS).close()


def test_a_run_that_left_nothing_does_not_bind_the_next(tmp_path: Path) -> None:
    RunDirectory(tmp_path, OPTIONS).close()
    other = replace(OPTIONS, seed=2)
    RunDirectory(tmp_path, other).close()
    assert read_config(tmp_path)["seed"] == 2


def test_a_directory_that_holds_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        (tmp_path / name).touch()
    with pytest.raises(
        ConfigError, match=r"expected a new or empty directory, or one .*; found a, b, c and more"
    ):
        RunDirectory(tmp_path, OPTIONS)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(ConfigError, match="expected a directory, found a file"):
        RunDirectory(tmp_path / "x", OPTIONS)


def test_a_path_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(ConfigError, match=r"cannot be used: .*Not a directory"):
        RunDirectory(tmp_path / "x" / "y", OPTIONS)


def test_what_a_crash_before_the_first_config_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / ".config.toml.tmp").write_text("env = ")
    run = RunDirectory(tmp_path, OPTIONS)
    assert not run.resumed
    run.close()


@pytest.mark.parametrize(("text", "reason"), [("env = ", "Invalid value"), ("\n", "it is empty")])
def test_unreadable_config_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(ConfigError, match=rf"config\.toml cannot be read: {reason}"):
        RunDirectory(tmp_path, OPTIONS)


def test_reading_the_config_of_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected a run, found no config\.toml"):
        read_config(tmp_path)


def test_a_second_learner_is_refused_by_the_pid_of_the_first(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path, OPTIONS)
    with pytest.raises(ConfigError, match=f"is in use .* process id {os.getpid()} on ") as raised:
        RunDirectory(tmp_path, OPTIONS)
    assert str(raised.value).endswith("end that one first, or give this run a --logdir of its own")
    # Only reading needs no lock.
    assert read_config(tmp_path)["env"] == "CartPole-v1"
    run.close()
    RunDirectory(tmp_path, OPTIONS).close()


def test_a_learner_of_another_process_is_seen_and_its_death_releases_the_directory(
    tmp_path: Path,
) -> None:
    code = (
        "import sys, os\nfrom pathlib import Path\nfrom learner.config import LearnerOptions\n"
        "from learner.telemetry.run_directory import RunDirectory\n"
        "run = RunDirectory(Path(sys.argv[1]), LearnerOptions())\n"
        "sys.stdout.write('held\\n'); sys.stdout.flush()\nsys.stdin.read(); os._exit(1)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=f"process id {holder.pid} on "):
            RunDirectory(tmp_path, LearnerOptions())
        holder.communicate("")
    assert holder.returncode == 1
    RunDirectory(tmp_path, LearnerOptions()).close()


def test_summary_holds_the_result(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path, OPTIONS)
    run.write_summary(summarize(OPTIONS, EpisodeTracker(1, clock=lambda: 5.0), [], policy_version=3))
    run.close()
    assert json.loads((tmp_path / "summary.json").read_text()) == {
        "env": "CartPole-v1",
        "agent": "vtrace",
        "seed": 1,
        "env_steps": 0,
        "seconds": 0.0,
        "steps_per_second": 0.0,
        "episodes": 0,
        "mean_return_100": None,
        "stop_return": 475.0,
        "solved_env_steps": None,
        "solved_seconds": None,
        "last_evaluation": None,
        "best_evaluation": None,
        "policy_version": 3,
    }


def test_summary_takes_over_what_the_tracker_counted() -> None:
    clock = iter(range(100))
    tracker = EpisodeTracker(1, clock=lambda: float(next(clock)))
    state = tracker.state()
    tracker.restore({**state, "env_steps": 600, "episodes": 2, "recent_returns": [1, 2], "seconds": 99})
    summary = summarize(OPTIONS, tracker, [], policy_version=7)
    assert summary.seconds == 100
    assert summary.steps_per_second == 6
    assert (summary.env_steps, summary.episodes, summary.mean_return_100) == (600, 2, 1.5)


def test_summary_that_cannot_be_written_raises(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path, OPTIONS)
    summary: Summary = summarize(OPTIONS, EpisodeTracker(1), [], 0)
    with full_at(10), pytest.raises(OSError, match="File too large"):
        run.write_summary(summary)
    run.close()
    assert len(asdict(summary)) == 14


def test_metrics_go_to_the_file_and_to_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = RunDirectory(tmp_path, OPTIONS)
    for step in (10, 20):
        report = Report(env_steps=step, total_steps=100, seconds=1.0, steps_per_second=1.0)
        values = {"env_steps": step, "loss": step / 4, "policy_lag": None, "bad": float("nan")}
        run.write_metrics(report, values)
    run.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == [2.5, 5.0]
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["env_steps", "loss"]
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(10, 2.5), (20, 5.0)]


def test_learning_curve_that_cannot_be_written_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunDirectory(tmp_path, OPTIONS)
    curve = Curve([CurvePoint(10, 1.0, 5.0)], 1)
    run.write_learning_curve(curve)
    before = (tmp_path / "learning_curve.png").read_bytes()
    assert before.startswith(b"\x89PNG")
    with full_at(1000):
        run.write_learning_curve(curve)
        run.write_learning_curve(curve)
    run.close()
    assert (tmp_path / "learning_curve.png").read_bytes() == before
    assert caplog.text.count("learning_curve.png cannot be written") == 1


def test_a_run_directory_is_opened_without_tensorflow_or_matplotlib(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom learner.config import LearnerOptions\n"
        "from learner.telemetry.run_directory import RunDirectory\n"
        "RunDirectory(Path(sys.argv[1]), LearnerOptions()).close()\n"
        "sys.exit('tensorflow' in sys.modules or 'matplotlib' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


# A directory that is gone -------------------------------------------------------------------------


def test_nothing_is_written_to_where_the_directory_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunDirectory(tmp_path / "run", OPTIONS)
    checkpoints = Checkpoints(run.checkpoints, keep=1, check=run.check)
    assert checkpoints.save(1, {}, {}) is not None
    shutil.rmtree(run.path)
    assert checkpoints.save(2, {}, {}) is None
    assert checkpoints.beside("replay").save(2, {}, {}) is None
    run.write_learning_curve(Curve([], 1))
    gone = f"{run.path} holds no config.toml any more: was it deleted or unmounted?"
    assert [record.getMessage().count(gone) for record in caplog.records] == [1, 1, 1]
    with pytest.raises(OSError, match="was it deleted or unmounted"):
        run.write_summary(summarize(OPTIONS, EpisodeTracker(1), [], 0))
    assert not run.path.exists()
    run.close()


def test_nothing_is_written_into_the_directory_of_another_learner(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(tmp_path / "run", OPTIONS)
    checkpoints = Checkpoints(run.checkpoints, keep=1, check=run.check)
    shutil.rmtree(run.path)
    monkeypatch.setattr("os.getpid", lambda: 4711)
    other = RunDirectory(tmp_path / "run", OPTIONS)
    others = Checkpoints(other.checkpoints, keep=1, check=other.check)
    assert others.save(1, {}, {}) is not None
    assert checkpoints.save(2, {}, {}) is None
    assert f"{run.path} is now that of the learner with process id 4711 on " in caplog.text
    assert [path.name for path in others.paths()] == ["step_000000001.npz"]
    run.close()
    other.close()


def test_a_file_system_without_locks_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    (tmp_path / ".lock").write_text("1 on a machine of old\n")
    monkeypatch.setattr("fcntl.flock", flock)
    run = RunDirectory(tmp_path, OPTIONS)
    assert f"the file system of {tmp_path} has no locks" in caplog.text
    run.check()
    run.close()


def test_a_lock_that_somebody_deletes_harms_nothing(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run", OPTIONS)
    (run.path / ".lock").unlink()
    run.check()
    run.close()
