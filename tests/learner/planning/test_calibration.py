"""Costs of parts alone, corrected by a run whose figures are known."""

import dataclasses

import pytest

from learner.planning.calibration import MOST, calibrated
from learner.planning.model import Costs, Deployment, Line, predict
from learner.planning.trials import Setting, Trial

MS = 1e-3

COSTS = Costs(
    environment=Line(0.0, 1 * MS),
    actor_message=Line(1 * MS, 0.25 * MS),
    learner_message=Line(0.5 * MS, 0.0),
    event_loop=Line(0.25 * MS, 0.0),
    policy_call=Line(1 * MS, 0.125 * MS),
    training=0.1 * MS,
    wire=Line(100.0, 1000.0),
)
HERE = Deployment(2, 4, cores=16.0)


def trial(rate: float, **changes: float) -> Trial:
    return dataclasses.replace(Trial(Setting(2, 4, 1, 0, 0, 8), 4.0, rate, batch=8.0), **changes)


def test_a_run_that_does_what_was_expected_changes_nothing() -> None:
    expected = trial(
        predict(COSTS, HERE).rate,
        actor_cpu=(4 + 2) / 4 * MS,
        learner_cpu=(0.5 / 4 + (1 + 8 * 0.125) / 8 + 0.1) * MS,
    )
    found = calibrated(COSTS, expected, HERE)
    assert found.delay == pytest.approx(0.0, abs=1e-6)
    assert dataclasses.replace(found, delay=0.0) == COSTS


def test_cpu_time_that_no_part_showed_is_that_of_messages_and_calls() -> None:
    # Three times 2 ms for the actor's message of 4 rows, beside its 1 ms a step.
    # Twice what the learner spends on a message and the fixed part of a call: 0.125 and 0.125 ms a step.
    found = calibrated(
        COSTS, trial(100.0, actor_cpu=(1 + 1.5) * MS, learner_cpu=(0.5 + 0.125 + 0.1) * MS), HERE
    )
    assert found.actor_message.at(4) == pytest.approx(6 * MS)
    assert found.environment == COSTS.environment
    assert found.learner_message.at(4) == pytest.approx(1 * MS)
    assert found.event_loop.at(4) == pytest.approx(0.5 * MS)
    assert found.policy_call.fixed == pytest.approx(2 * MS)
    assert (found.policy_call.per_row, found.training) == (COSTS.policy_call.per_row, COSTS.training)


def test_the_trials_own_rate_is_predicted_afterwards() -> None:
    for rate in (300.0, 700.0):
        found = calibrated(COSTS, trial(rate, actor_cpu=1.5 * MS, learner_cpu=0.4 * MS), HERE)
        assert found.delay > 0
        assert predict(found, HERE).rate == pytest.approx(rate, rel=1e-3)


def test_so_it_is_where_the_event_loop_acts() -> None:
    costs = dataclasses.replace(COSTS, on_event_loop=True)
    found = calibrated(costs, trial(700.0, learner_cpu=0.4 * MS), HERE)
    assert found.on_event_loop
    assert found.delay > 0
    assert predict(found, HERE).rate == pytest.approx(700.0, rel=1e-3)


def test_so_it_is_in_lock_step() -> None:
    here = dataclasses.replace(HERE, lock_step=True)
    found = calibrated(COSTS, trial(300.0), here)
    assert predict(found, here).rate == pytest.approx(300.0, rel=0.02)


def test_a_wait_for_what_is_busy_is_no_delay() -> None:
    slow = dataclasses.replace(COSTS, training=10 * MS)
    assert calibrated(slow, trial(99.0), HERE).delay == 0


def test_without_the_systems_clocks_the_costs_stay() -> None:
    found = calibrated(COSTS, trial(500.0), HERE)
    assert dataclasses.replace(found, delay=0.0) == COSTS


def test_a_correction_beyond_belief_is_cut() -> None:
    found = calibrated(COSTS, trial(500.0, actor_cpu=1.0), HERE)
    assert found.actor_message.at(4) == pytest.approx(MOST * 2 * MS)
