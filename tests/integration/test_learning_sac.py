"""Soft actor-critic learns, from the replay, with actors of its own."""

from pathlib import Path
from typing import Any

import pytest

from tests.integration.commands import read_json, seedbed
from tests.integration.processes import options

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def train(logdir: Path, **chosen: object) -> dict[str, Any]:
    """The summary of a run."""
    done = seedbed("train", *options(logdir=logdir, seed=1, **chosen))
    assert done.status == 0, done.stderr
    summary = read_json(logdir / "summary.json")
    assert isinstance(summary, dict)
    return summary


def test_pendulum_swings_up(tmp_path: Path) -> None:
    summary = train(tmp_path / "run", preset="pendulum-sac", stop_return=-180)
    assert summary["solved_env_steps"] is not None, summary


def test_discrete_actions_balance_the_pole(tmp_path: Path) -> None:
    chosen = {
        "env": "CartPole-v1", "agent": "sac", "num_actors": 1, "envs_per_actor": 4, "unroll_length": 8,
        "queue_capacity": 4, "replay_min_size": 1000, "hidden_sizes": [64, 64], "learning_rate": 1e-3,
        "critic_learning_rate": 1e-3, "temperature_learning_rate": 1e-3, "total_steps": 30_000,
    }  # fmt: skip
    summary = train(tmp_path / "run", stop_return=195, **chosen)
    assert summary["solved_env_steps"] is not None, summary
