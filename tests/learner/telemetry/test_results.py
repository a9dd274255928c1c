"""What a run leaves at its end."""

import json
from pathlib import Path

import pytest

from learner.config import LearnerOptions
from learner.telemetry.episodes import EpisodeTracker
from learner.telemetry.results import leave_results
from learner.telemetry.run_directory import RunDirectory
from tests.learner.telemetry.disk import full_at

OPTIONS = LearnerOptions(env="CartPole-v1")


def leave(folder: Path, limit: int | None = None) -> None:
    directory = RunDirectory(folder, OPTIONS)
    tracker = EpisodeTracker(1, clock=lambda: 5.0)
    state = tracker.state()
    tracker.restore({**state, "env_steps": 600, "episodes": 2, "recent_returns": [1, 2], "seconds": 60})
    try:
        if limit is None:
            leave_results(directory, tracker, [], 7)
        else:
            with full_at(limit):
                leave_results(directory, tracker, [], 7)
    finally:
        directory.close()


def test_files_and_a_last_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "learner.telemetry.results")
    leave(tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["policy_version"] == 7
    assert (tmp_path / "learning_curve.png").exists()
    assert caplog.messages == [
        "600 environment steps in 60.0 s (10 steps/s), 2 episodes, mean return of the last 2: 1.500; "
        f"see {tmp_path}"
    ]


def test_a_full_disk_is_said_and_the_line_comes_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "learner.telemetry.results")
    leave(tmp_path, limit=10)
    assert not (tmp_path / "summary.json").exists()
    assert any(words.startswith("summary.json cannot be written: ") for words in caplog.messages)
    assert caplog.messages[-1].startswith("600 environment steps in 60.0 s")
