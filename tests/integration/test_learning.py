"""It learns: what a run reaches, and that memory is what a task of memory takes."""

from pathlib import Path
from typing import Any

import pytest

from tests.integration import memory_env
from tests.integration.commands import read_json, seedbed
from tests.integration.processes import options

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

MEMORY_ENV = f"{memory_env.__file__}:MemoryEnv"


def train(logdir: Path, **chosen: object) -> dict[str, Any]:
    """The summary of a run."""
    done = seedbed("train", *options(logdir=logdir, seed=1, **chosen))
    assert done.status == 0, done.stderr
    return read_json(logdir / "summary.json")


def test_cartpole_is_solved(tmp_path: Path) -> None:
    summary = train(tmp_path / "run", env="CartPole-v1", stop_return=475, total_steps=500_000)
    assert summary["solved_env_steps"] is not None, summary
    assert summary["solved_env_steps"] <= 500_000
    assert summary["mean_return_100"] >= 475


def test_memory_task_is_solved_with_an_lstm(tmp_path: Path) -> None:
    chosen = {"env": MEMORY_ENV, "stop_return": 0.9, "total_steps": 500_000}
    summary = train(tmp_path / "run", lstm_size=64, **chosen)
    assert summary["solved_env_steps"] is not None, summary


def test_memory_task_is_not_solved_without(tmp_path: Path) -> None:
    summary = train(tmp_path / "run", env=MEMORY_ENV, stop_return=0.9, total_steps=100_000)
    assert summary["solved_env_steps"] is None, summary
    # One in four by chance; 100 episodes are hardly ever so lucky.
    assert summary["mean_return_100"] < 2 / memory_env.CUES
