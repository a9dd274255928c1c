"""Options of replay and R2D2 that do not fit together are refused at start, with the way out."""

from typing import Any

import pytest

from learner.agent_options import AgentOptions
from learner.config import LearnerOptions, TrainOptions
from protos.errors import ConfigError

R2D2: dict[str, Any] = {
    "agent": "r2d2", "unroll_length": 10, "batch_size": 4, "replay_sequence_unrolls": 3, "burn_in": 10,
    "lstm_size": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"burn_in": 30},
            r"--burn-in 30 leaves nothing to train on of --replay-sequence-unrolls 3 times "
            r"--unroll-length 10: lower it, or raise one of these",
        ),
        ({"n_step": 21}, r"--n-step 21 is more than the 20 transitions .* lower it, or raise --unroll-"),
        ({"lstm_size": 0}, r"--burn-in 10 warms an LSTM, and there is none: say --burn-in 0, or choose"),
        (
            {"replay_capacity": 119, "replay_min_size": 10},
            r"--replay-capacity 119 is less than a batch, --batch-size 4 times 30 .* raise it to 120",
        ),
        (
            {"replay_capacity": 500, "replay_min_size": 501},
            r"--replay-min-size 501 is more than --replay-capacity 500 keeps in whole unrolls, which is "
            r"500, so that training would never start: lower it",
        ),
        (
            {"replay_capacity": 129, "replay_min_size": 125},
            r"--replay-min-size 125 is more than --replay-capacity 129 keeps in whole .* which is 120,",
        ),
        (
            {"agent": "sac", "n_step": 11, "replay_sequence_unrolls": 1, "burn_in": 0, "lstm_size": 0},
            r"--n-step 11 is more than the 10 transitions",
        ),
        ({"agent": "vtrace"}, r"--replay-sequence-unrolls is an option of r2d2, and --agent is vtrace"),
    ],
)
def test_combinations_are_refused_with_the_way_out(change: dict[str, Any], message: str) -> None:
    AgentOptions(**R2D2)
    with pytest.raises(ConfigError, match=message):
        AgentOptions(**{**R2D2, **change})


def test_the_longest_that_fits_is_accepted() -> None:
    AgentOptions(**{**R2D2, "burn_in": 29, "n_step": 1})
    AgentOptions(**{**R2D2, "n_step": 20})
    AgentOptions(**{**R2D2, "replay_capacity": 120, "replay_min_size": 120})


def test_a_saved_replay_needs_a_replay() -> None:
    LearnerOptions(agent="r2d2", save_replay=True)
    with pytest.raises(ConfigError, match="--save-replay is an option of r2d2 and sac, and --agent is"):
        LearnerOptions(agent="vtrace", save_replay=True)


def test_a_queue_smaller_than_a_batch_is_no_trouble_for_a_replay() -> None:
    LearnerOptions(agent="r2d2", queue_capacity=2, batch_size=16)
    with pytest.raises(ConfigError, match="would never fill a batch"):
        LearnerOptions(queue_capacity=2, batch_size=16)


def test_lengths_of_samples() -> None:
    r2d2 = AgentOptions(**R2D2)
    assert (r2d2.replays, r2d2.sample_length, r2d2.trained_length) == (True, 30, 20)
    sac = AgentOptions(agent="sac", n_step=3)
    assert (sac.replays, sac.sample_length, sac.trained_length) == (True, 3, 1)
    vtrace = AgentOptions(unroll_length=7)
    assert (vtrace.replays, vtrace.sample_length, vtrace.trained_length) == (False, 7, 7)


def test_the_ladder_is_for_the_local_environments() -> None:
    train = TrainOptions(env="x", agent="r2d2", num_actors=3, envs_per_actor=5)
    assert train.exploring_environments == 15
    chosen = TrainOptions(env="x", agent="r2d2", num_actors=3, epsilon_environments=4)
    assert chosen.exploring_environments == 4
    assert LearnerOptions(agent="r2d2").exploring_environments == 16


def test_a_run_that_would_end_before_it_trains_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"--replay-min-size 900 is not less than --total-steps 900, so"
    ):
        LearnerOptions(agent="r2d2", replay_min_size=900, total_steps=900)
    LearnerOptions(agent="r2d2", replay_min_size=900, total_steps=901)
    LearnerOptions(agent="vtrace", total_steps=900)
