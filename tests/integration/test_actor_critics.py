"""Runs of PPO and A2C: in lock-step where they are to be, going on where they ended, and learning."""

from pathlib import Path
from typing import Any

import pytest

from tests.integration.commands import read_json, read_metrics, seedbed
from tests.integration.processes import options

SMALL = {
    "env": "CartPole-v1", "num_actors": 1, "envs_per_actor": 4, "unroll_length": 8, "batch_size": 4,
    "seed": 1,
}  # fmt: skip
NORMALIZED = ("--normalize-observations", "--normalize-rewards")
PPO = ("--agent=ppo", "--minibatches=2", *NORMALIZED)


def train(logdir: Path, *arguments: str, **chosen: object) -> dict[str, Any]:
    """The summary of a run."""
    done = seedbed("train", *arguments, *options(logdir=logdir, **chosen))
    assert done.status == 0, done.stderr
    return read_json(logdir / "summary.json")


@pytest.mark.parametrize(
    "arguments", [("--agent=a2c", *NORMALIZED), (*PPO, "--lock-step")], ids=["a2c", "ppo"]
)
def test_in_lock_step_only_the_first_action_of_an_unroll_is_a_version_old(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    summary = train(tmp_path / "run", *arguments, total_steps=600, log_interval_seconds=0.2, **SMALL)

    assert summary["policy_version"] == pytest.approx(600 / 32, abs=2)
    lags = [line["policy_lag"] for line in read_metrics(tmp_path / "run")]
    known = [lag for lag in lags if lag]
    assert known
    assert all(lag <= 1 / 8 for lag in known)


def test_ppo_goes_on_with_its_moments_and_is_evaluated(tmp_path: Path) -> None:
    logdir = tmp_path / "run"
    train(logdir, *PPO, total_steps=300, **SMALL)

    summary = train(logdir, *PPO, total_steps=600, **SMALL)

    assert summary["env_steps"] >= 600
    done = seedbed("evaluate", f"--logdir={logdir}", "--episodes=2")
    assert done.status == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("preset", "bar"), [("cartpole-ppo", 475), ("pendulum-ppo", -250)])
def test_presets_reach_their_bars(tmp_path: Path, preset: str, bar: float) -> None:
    summary = train(tmp_path / "run", preset=preset, seed=1)

    assert summary["mean_return_100"] >= bar
