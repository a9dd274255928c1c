"""Whole runs that learn from a replay: what they report, and going on with a saved one."""

from pathlib import Path
from typing import Any

import pytest

from tests.integration.commands import Done, read_json, read_metrics, seedbed
from tests.integration.processes import options

SMALL: dict[str, Any] = {
    "agent": "r2d2", "env": "CartPole-v1", "num_actors": 1, "envs_per_actor": 4, "unroll_length": 5,
    "replay_sequence_unrolls": 3, "burn_in": 5, "batch_size": 4, "lstm_size": 4, "hidden_sizes": "[4]",
    "n_step": 3, "samples_per_insert": 2, "replay_min_size": 100, "replay_capacity": 600,
    "log_interval_seconds": 0.2, "progress": "none",
}  # fmt: skip


def train(logdir: Path, **chosen: Any) -> Done:
    done = seedbed("train", *options(logdir=logdir, **{**SMALL, **chosen}), "--save-replay")
    assert done.status == 0, done.stderr
    return done


def test_a_run_keeps_its_ratio_and_goes_on_with_its_replay(tmp_path: Path) -> None:
    logdir = tmp_path / "run"
    train(logdir, total_steps=900)
    summary = read_json(logdir / "summary.json")
    assert summary["policy_version"] > 900 * 2 / (4 * 10) / 2
    folder = logdir / "checkpoints" / "replay"
    saved = [path.name for path in folder.iterdir()]
    assert saved == [f"step_{summary['policy_version']:09d}.npz"]

    done = train(logdir, total_steps=1600)

    assert f"replay of version {summary['policy_version']}: 120 unrolls" in done.stderr
    last = read_metrics(logdir)[-1]
    assert last["replay/inserted"] > 1300
    assert last["replay/unrolls"] == 120
    assert last["replay/samples_per_insert"] == pytest.approx(2, rel=0.1)
    assert last["replay/bytes"] < 600 * 100


def test_evaluation_is_greedy_whatever_the_exploration(tmp_path: Path) -> None:
    logdir = tmp_path / "run"
    train(logdir, total_steps=600, epsilon=1.0, epsilon_exponent=1)
    done = seedbed("evaluate", *options(logdir=logdir, episodes=3))
    assert done.status == 0, done.stderr


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"env": "Pendulum-v1"}, "--agent r2d2 learns the values of Discrete actions"),
        ({"replay_gigabytes": 1e-6}, "--replay-gigabytes 1e-06 holds"),
        ({"burn_in": 15}, "--burn-in 15 leaves nothing to train on"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    tmp_path: Path, chosen: dict[str, Any], message: str
) -> None:
    done = seedbed("train", *options(logdir=tmp_path / "run", **{**SMALL, **chosen}))
    assert done.status == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_memory_task_is_solved(tmp_path: Path) -> None:
    """By greedy episodes: those of training explore."""
    logdir = tmp_path / "run"
    arguments = options(logdir=logdir, preset="memory-r2d2", seed=1, progress="none")
    assert seedbed("train", *arguments).status == 0
    done = seedbed("evaluate", *options(logdir=logdir, episodes=200))
    assert '"mean_return": ' in done.stdout
    mean = float(done.stdout.split('"mean_return": ')[1].split(",")[0])
    assert mean >= 0.95
