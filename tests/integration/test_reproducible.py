"""`--reproducible`: one seed, the same weights; what cannot keep that is refused."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.config import TrainOptions
from learner.training.checkpoint import Checkpoint, Checkpoints
from protos.errors import ConfigError
from tests.integration.processes import ROOT, options

VECTOR = {"env": "CartPole-v1", "unroll_length": 2, "batch_size": 4, "total_steps": 8200}
"""Somewhat more than 1,000 updates."""

REPLAY = {"replay_capacity": 2000, "replay_min_size": 100, "samples_per_insert": 1}

AGENTS: dict[str, dict[str, Any]] = {
    "vtrace": VECTOR,
    "a2c": VECTOR,
    "ppo": {**VECTOR, "epochs": 2, "minibatches": 2},
    "r2d2": {**VECTOR, **REPLAY, "burn_in": 2, "lstm_size": 8, "n_step": 2, "total_steps": 17_000},
    "sac": {**VECTOR, **REPLAY, "env": "Pendulum-v1", "batch_size": 4, "total_steps": 4200},
}


def trained(logdir: Path, **changes: Any) -> Checkpoint:
    """What a run comes to, in a process of its own: TensorFlow's determinism is for good."""
    chosen = {
        "logdir": logdir,
        "num_actors": 1,
        "envs_per_actor": 4,
        "hidden_sizes": "[8]",
        "progress": "none",
        **changes,
    }
    command = [sys.executable, "-m", "learner", "train", "--reproducible", *options(**chosen)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=100)
    checkpoint = Checkpoints(logdir / "checkpoints", 9).load_latest()
    assert checkpoint is not None
    return checkpoint


def assert_same(one: Checkpoint, other: Checkpoint) -> None:
    assert one.version == other.version
    assert set(one.arrays) == set(other.arrays)
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, other.arrays[name], name)


def test_the_same_seed_gives_the_same_weights_and_another_others(tmp_path: Path) -> None:
    changes = {**VECTOR, "total_steps": 800}
    one, same, other = (
        trained(tmp_path / str(run), **changes, seed=seed) for run, seed in enumerate((1, 1, 2))
    )
    assert one.version >= 90
    assert_same(one, same)
    assert any((array != other.arrays[name]).any() for name, array in one.arrays.items())


@pytest.mark.slow
@pytest.mark.parametrize("agent", AGENTS)
def test_a_thousand_updates_of_every_agent_are_bit_equal(agent: str, tmp_path: Path) -> None:
    one, same = (trained(tmp_path / run, agent=agent, **AGENTS[agent]) for run in "ab")
    assert one.version >= 1000
    assert_same(one, same)


def test_it_has_one_actor_unless_told_otherwise() -> None:
    assert TrainOptions(env="x", reproducible=True).num_actors == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_actors": 2}, "--reproducible with --num-actors 2: which of them comes first differs"),
        ({"inference_threads": 2}, "--reproducible with --inference-threads 2: which of them"),
    ],
)
def test_what_comes_in_any_order_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainOptions(env="x", reproducible=True, **{"num_actors": 1, **changes})
