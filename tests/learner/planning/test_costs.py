"""Costs: what is measured is of the right order, and goes to the right place; what is given goes before
that."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from learner.planning import messages
from learner.planning.computing import ComputeCosts, Stopwatch, Timed, measure_compute
from learner.planning.costs import (
    NOTHING,
    actor_sizes,
    call_sizes,
    combine,
    find_costs,
    most_rows,
    steps_per_update,
    wire_bytes,
    with_given,
)
from learner.planning.messages import ActorCosts, AnswerCosts, measure_actor
from learner.planning.model import Line
from learner.planning.options import COST_OPTIONS, PlanOptions
from learner.planning.ready import random_unrolls
from learner.presets import starting_values
from protos import specs
from protos.errors import EnvironmentFailure

SPEC = specs.from_spaces(Box(0, 255, (84, 84, 1), np.uint8), Discrete(6))
SMALL = specs.from_spaces(Box(-1, 1, (4,)), Discrete(2))

ACTOR = ActorCosts(
    SPEC,
    Line(1, 2),
    Line(3, 4),
    by_thread=AnswerCosts(Line(5, 6), Line(7, 8)),
    at_once=AnswerCosts(Line(9, 10), Line(11, 12)),
)
COMPUTE = ComputeCosts(
    {4: Timed(cpu=1.0, wall=3.0), 20: Timed(cpu=9.0, wall=4.5)},
    update=Timed(cpu=256.0, wall=64.0),
    accelerated=False,
    by_numpy=False,
)


def options(**changes: Any) -> PlanOptions:
    return PlanOptions(**{"env": "CartPole-v1", "num_actors": 2, **changes})


# Sizes -------------------------------------------------------------------------------------------


def test_sizes_are_distinct_and_end_with_what_is_asked() -> None:
    assert actor_sizes(16) == [4, 16]
    assert actor_sizes(1) == [1]
    assert call_sizes(16, 64) == [4, 16, 64]
    assert call_sizes(1, 1) == [1]
    assert call_sizes(16, 5000) == [4, 16, 256]
    assert call_sizes(1000, 5000) == [250, 1000]


# Combining ---------------------------------------------------------------------------------------


def test_measured_costs_go_where_the_model_looks() -> None:
    costs = combine(ACTOR, COMPUTE, options(unroll_length=16, batch_size=8))
    assert (costs.environment, costs.actor_message) == (ACTOR.environment, ACTOR.actor_message)
    assert (costs.learner_message, costs.event_loop) == (Line(5, 6), Line(7, 8))
    assert not costs.on_event_loop
    # The line through 4 rows at 1 s and 20 rows at 9 s would begin below 0.
    assert (costs.policy_call.fixed, costs.policy_call.at(20)) == (0.0, 9.0)
    assert costs.training == 256.0 / 128
    assert (costs.policy_parallelism, costs.training_parallelism) == (2.0, 4.0)
    assert costs.accelerated_row == costs.accelerated_training == 0


def test_where_numpy_acts_the_event_loop_answers_at_once() -> None:
    at_once = dataclasses.replace(COMPUTE, by_numpy=True)
    costs = combine(ACTOR, at_once, options())
    assert costs.on_event_loop
    assert (costs.learner_message, costs.event_loop) == (Line(9, 10), Line(11, 12))
    # An accelerator that is there trains, and has no part in acting.
    both = combine(ACTOR, dataclasses.replace(at_once, accelerated=True), options())
    assert (both.policy_call, both.accelerated_row) == (costs.policy_call, 0.0)
    assert both.training == 0.0 < both.accelerated_training


def test_the_most_rows_are_the_learners() -> None:
    assert most_rows(options(num_actors=40)) == 640
    assert most_rows(options(num_actors=40, actor_cores=4)) == 256
    assert most_rows(options(num_actors=40, inference_batch_size=64)) == 64


def test_where_others_take_the_time_a_thread_is_still_a_thread() -> None:
    busy = dataclasses.replace(COMPUTE, update=Timed(cpu=1.0, wall=5.0))
    assert combine(ACTOR, busy, options()).training_parallelism == 1.0


def test_an_accelerator_is_timed_by_the_wall() -> None:
    compute = dataclasses.replace(COMPUTE, accelerated=True)
    costs = combine(ACTOR, compute, options(unroll_length=16, batch_size=8))
    assert costs.accelerated_row == (4.5 - 3.0) / 16
    assert costs.accelerated_training == 64.0 / 128
    assert (costs.policy_call.per_row, costs.training) == (0.0, 0.0)


def test_a_replay_trains_on_as_much_as_the_ratio_says() -> None:
    assert steps_per_update(options(unroll_length=16, batch_size=8)) == 128
    sac = options(agent="sac", batch_size=256, samples_per_insert=64.0)
    assert steps_per_update(sac) == 256 / 64
    r2d2 = options(
        agent="r2d2",
        unroll_length=20,
        replay_sequence_unrolls=3,
        burn_in=20,
        lstm_size=8,
        batch_size=32,
        samples_per_insert=4.0,
    )
    # 32 sequences of 60 less 20 of burn-in, each transition 4 times.
    assert steps_per_update(r2d2) == 32 * 40 / 4


def test_bytes_are_those_that_the_wire_benchmark_has_counted() -> None:
    line = wire_bytes(SPEC, 32)
    assert line.at(32) / 32 == pytest.approx(7077, abs=2)
    assert wire_bytes(SPEC, 1).at(1) == pytest.approx(7179, abs=10)


# Given by hand -----------------------------------------------------------------------------------


def test_what_is_given_goes_before_what_was_measured() -> None:
    costs = combine(ACTOR, COMPUTE, options())
    given = with_given(costs, options(environment_us_per_step=10.0, bytes_per_step=100.0))
    assert given.environment == Line(0.0, 10e-6)
    assert given.wire == Line(0.0, 100.0)
    assert dataclasses.replace(given, environment=costs.environment, wire=costs.wire) == costs


def test_an_accelerators_figures_take_work_off_the_cpu() -> None:
    costs = combine(ACTOR, dataclasses.replace(COMPUTE, update=Timed(1.0, 1.0)), options())
    given = with_given(costs, options(inference_us_per_row=5.0, training_us_per_step=7.0))
    assert given.policy_call == Line(costs.policy_call.fixed, 0.0)
    assert given.training == 0.0
    at_once = dataclasses.replace(costs, on_event_loop=True)
    assert not with_given(at_once, options(inference_us_per_row=5.0)).on_event_loop
    assert given.accelerated_row == pytest.approx(5e-6)
    assert given.accelerated_training == pytest.approx(7e-6)


def test_a_call_and_its_rows_are_given_in_any_order() -> None:
    both = options(inference_us_per_call=300.0, inference_us_per_row=5.0)
    costs = with_given(combine(ACTOR, COMPUTE, options()), both)
    assert costs.policy_call == Line(300e-6, 0.0)


def test_where_all_is_given_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise AssertionError("it measures")

    monkeypatch.setattr("learner.planning.costs.measure_actor", fail)
    given = options(env="NoSuch-v0", **dict.fromkeys(COST_OPTIONS, 3.0))
    costs, calls = find_costs(given)
    assert calls == {}
    assert costs == with_given(NOTHING, given)
    assert costs.learner_message == costs.event_loop == costs.actor_message == Line(3e-6, 0.0)


# Measured ----------------------------------------------------------------------------------------


def test_an_actor_is_measured_over_a_real_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MESSAGES", 30)
    monkeypatch.setattr(messages, "UNCOUNTED", 10)
    found = measure_actor("CartPole-v1", [1, 8], 0.01)
    assert found.spec.observation[0].shape == (4,)
    # Bounds that only a mistake of unit or of place would leave.
    assert 1e-7 < found.environment.at(8) < 0.1
    assert 1e-5 < found.actor_message.at(8) < 0.1
    for answers in (found.by_thread, found.at_once):
        # Of few messages, and of a loop that does nearly all, the part may seem larger than the whole.
        assert 1e-5 < answers.event_loop.at(8) < 2 * answers.learner_message.at(8) < 0.1


def test_an_environment_that_is_not_there_is_said_with_the_actors_words() -> None:
    before = set(children())
    with pytest.raises(EnvironmentFailure, match=r"--env NoSuch-v0 cannot be measured \(status 1\):\n"):
        measure_actor("NoSuch-v0", [1], 0.01)
    assert set(children()) == before


def children() -> list[str]:
    """Ids of this process's children."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


@pytest.mark.parametrize("agent", ["vtrace", "r2d2", "sac"])
def test_policies_and_updates_of_every_kind_are_measured(agent: str) -> None:
    given = {**starting_values("none", "x", agent), "agent": agent, "hidden_sizes": (8,)}
    changes = {"batch_size": 4} if agent == "sac" else {"batch_size": 4, "lstm_size": 4}
    small = options(**{**given, **changes})
    found = measure_compute(small, SMALL, [1, 3], 0.02, max_rows=4)
    assert sorted(found.policy_calls) == [1, 3]
    timed = [*found.policy_calls.values(), found.update]
    assert all(1e-5 < each.cpu < 5 and 0 < each.wall < 60 for each in timed)
    assert not found.accelerated


@pytest.mark.parametrize(
    ("changes", "max_rows", "by_numpy"),
    [
        ({}, 64, True),
        ({}, 10**6, False),
        ({"policy_engine": "numpy"}, 10**6, True),
        ({"policy_engine": "tensorflow"}, 64, False),
    ],
    ids=["small", "large", "numpy", "tensorflow"],
)
def test_what_computes_policies_is_what_the_learner_would_take(
    changes: dict[str, Any], max_rows: int, by_numpy: bool
) -> None:
    small = options(hidden_sizes=(32, 32), batch_size=4, **changes)
    assert measure_compute(small, SMALL, [3], 0.01, max_rows=max_rows).by_numpy == by_numpy


def test_a_batch_is_as_long_as_the_agents_samples() -> None:
    from learner.agents.build import make_agent
    from learner.serving.policy_call import PolicyFunction

    r2d2 = options(**{**starting_values("none", "x", "r2d2"), "agent": "r2d2", "batch_size": 4})
    policy = make_agent(r2d2, SMALL, seed=1).policy
    layout = PolicyFunction(policy, SMALL.observation, num_slots=1, max_rows=1, seed=1).layout
    batch = random_unrolls(layout, SMALL, r2d2)
    assert batch.reward.shape == (r2d2.sample_length + 1, 4) == (61, 4)
    assert {entry.shape for entry in batch.initial_state.values()} == {(4, 64)}


def test_a_stopwatch_times_its_turns() -> None:
    watch = Stopwatch(0.02)
    turns = sum(1 for _ in watch)
    timed = watch.per_turn()
    assert turns > 10
    assert 0 < timed.cpu < 0.02
    assert timed.cpu * turns < 0.2
