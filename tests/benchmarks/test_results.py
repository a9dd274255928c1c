"""The table of results from run directories."""

from pathlib import Path

import pytest

from benchmarks import results
from learner.config import LearnerOptions
from learner.telemetry.episodes import EpisodeTracker
from learner.telemetry.evaluations import Evaluation
from learner.telemetry.run_directory import RunDirectory
from learner.telemetry.summary import summarize
from learner.training.checkpoint import Checkpoints


def leave_run(path: Path, seed: int, returns: list[float], preset: str = "none") -> Path:
    """What a finished run of CartPole leaves."""
    options = LearnerOptions(env="CartPole-v1", preset=preset, seed=seed, logdir=str(path))
    directory = RunDirectory(path, options)
    tracker = EpisodeTracker(1, clock=lambda: 0.0)
    curve = {
        "points": [[100 * (i + 1), i, value] for i, value in enumerate(returns)],
        "episodes_per_point": 1,
        "pending": [],
    }
    state = {**tracker.state(), "env_steps": 1234, "seconds": 5.0, "curve": curve, "episodes": 3}
    tracker.restore({**state, "recent_returns": returns})
    evaluation = Evaluation(1000, 4.0, 7, 20, 450.0 + seed, 0.0, 400.0, 500.0)
    directory.write_summary(summarize(options, tracker, [evaluation], 7))
    metadata = {"episodes": tracker.state(), "evaluations": [list(evaluation)]}
    Checkpoints(directory.checkpoints, 1).save(7, {}, metadata)
    directory.close()
    return path


def test_seeds_of_one_preset_are_one_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [
        leave_run(tmp_path / "b", 2, [3.0, 5.0], "cartpole-ppo"),
        leave_run(tmp_path / "a", 1, [1.0, 2.0], "cartpole-ppo"),
        leave_run(tmp_path / "c", 1, [9.0]),
    ]
    results.main([str(path) for path in runs])
    _, _, first, second = capsys.readouterr().out.splitlines()
    assert first == "| cartpole-ppo | 1, 2 | 1,234, 1,234 | 5, 5 | 1.5, 4.0 | 451.0, 452.0 |"
    assert second == "| vtrace on CartPole-v1 | 1 | 1,234 | 5 | 9.0 | 451.0 |"


def test_curves_are_drawn(tmp_path: Path) -> None:
    run = leave_run(tmp_path / "a", 1, [1.0, 2.0])
    results.main([str(run), "--picture", str(tmp_path / "curve.png")])
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_no_finished_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = leave_run(tmp_path / "a", 1, [1.0])
    (run / "summary.json").unlink()
    with pytest.raises(SystemExit):
        results.main([str(run)])
    assert "expected a finished run, found no summary.json" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        results.main([str(tmp_path)])
    assert "expected run directories, found none" in capsys.readouterr().err
