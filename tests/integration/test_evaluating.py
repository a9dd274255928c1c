"""Evaluation while a run trains: its own environments, its curve, and the best checkpoint."""

import json
from pathlib import Path

import pytest

from learner.telemetry.report import return_text
from learner.training.checkpoint import Checkpoints
from tests.integration.commands import Done, read_json, read_metrics, seedbed
from tests.integration.processes import options


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """A short run that evaluates; to be left as it is."""
    logdir = tmp_path_factory.mktemp("runs") / "evaluated"
    chosen = {
        "env": "CartPole-v1",
        "logdir": logdir,
        "num_actors": 1,
        "envs_per_actor": 4,
        "total_steps": 3000,
        "eval_interval": 1000,
        "eval_episodes": 5,
        "eval_envs": 3,
        "log_interval_seconds": 0.2,
    }
    return logdir, seedbed("train", *options(**chosen))


def test_evaluations_have_results_of_their_own(evaluated: tuple[Path, Done]) -> None:
    logdir, done = evaluated
    assert done.status == 0, done.stderr
    summary = read_json(logdir / "summary.json")
    newest = Checkpoints(logdir / "checkpoints", 9).load_latest()
    assert newest is not None
    evaluations = newest.metadata["evaluations"]
    assert len(evaluations) >= 2
    steps = [evaluation[0] for evaluation in evaluations]
    assert steps == sorted(steps)
    assert steps[0] >= 1000
    assert evaluations[-1][2] == summary["policy_version"], "the last is of what the run has come to"
    assert {evaluation[3] for evaluation in evaluations} == {5}
    assert summary["last_evaluation"] == evaluations[-1][4]
    assert summary["best_evaluation"] == max(evaluation[4] for evaluation in evaluations)
    assert f"mean return of 5 episodes {return_text(summary['last_evaluation'])}" in done.stderr


def test_evaluation_steps_are_not_the_runs(evaluated: tuple[Path, Done]) -> None:
    last = read_metrics(evaluated[0])[-1]
    # Of the training session alone, though the evaluation's was there as well.
    assert last["environments"] == 4
    assert last["actors"] == 1
    assert last["evaluation/rounds"] >= 1


def test_the_best_checkpoint_is_kept_and_can_be_evaluated(evaluated: tuple[Path, Done]) -> None:
    logdir, _ = evaluated
    best = Checkpoints(logdir / "best_checkpoint", 9).load_latest()
    newest = Checkpoints(logdir / "checkpoints", 9).load_latest()
    assert best is not None
    assert newest is not None
    highest = max(newest.metadata["evaluations"], key=lambda evaluation: evaluation[4])
    assert best.version == highest[2]
    assert set(best.arrays) == set(newest.arrays)
    done = seedbed("evaluate", *options(logdir=logdir, checkpoint="best", episodes=2))
    assert done.status == 0, done.stderr
    assert json.loads(done.stdout)["version"] == best.version


def test_a_good_evaluation_can_end_the_run(tmp_path: Path) -> None:
    chosen = {
        "env": "CartPole-v1",
        "logdir": tmp_path / "run",
        "num_actors": 1,
        "envs_per_actor": 4,
        "total_steps": 10_000_000,
        "eval_interval": 500,
        "eval_episodes": 2,
        "stop_eval_return": 1.0,
    }
    done = seedbed("train", *options(**chosen))
    assert done.status == 0, done.stderr
    again = seedbed("train", *options(**chosen))
    assert "this run has reached its end already" in again.stderr


def test_a_run_without_evaluations_has_no_best_checkpoint(tmp_path: Path) -> None:
    chosen = {"env": "CartPole-v1", "logdir": tmp_path / "run", "total_steps": 500}
    assert seedbed("train", *options(**chosen, num_actors=1, envs_per_actor=4)).status == 0
    done = seedbed("evaluate", *options(logdir=tmp_path / "run", checkpoint="best"))
    assert done.status == 2
    assert "has no evaluation yet; --eval-interval makes them" in done.stderr
