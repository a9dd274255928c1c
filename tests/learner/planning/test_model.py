"""The capacity model against cases computed by hand."""

import dataclasses
import math

import pytest

from learner.planning.model import (
    ROUND_TRIPS,
    Costs,
    Deployment,
    Line,
    capacities,
    policy_lag,
    predict,
    round_trip,
)

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
"""With 4 environments: an actor needs 4 + 2 ms, the learner 0.5 ms a message, a call for 4 rows 1.5 ms,
training 0.4 ms."""

AT_ONCE = dataclasses.replace(COSTS, on_event_loop=True)
"""The event loop needs 0.25 ms a message and 1.5 ms for a call for 4 rows."""

PLENTY = 1000.0


def deployed(num_actors: int, **changes: float) -> Deployment:
    whole = Deployment(num_actors, 4, cores=PLENTY, actor_cores=PLENTY)
    return dataclasses.replace(whole, **changes)  # type: ignore[arg-type]


# Lines -------------------------------------------------------------------------------------------


def test_a_line_goes_through_its_ends() -> None:
    line = Line.through({4: 14.0, 8: 99.0, 16: 26.0})
    assert (line.fixed, line.per_row) == (10.0, 1.0)
    assert line.at(8) == 18.0


@pytest.mark.parametrize(
    ("measured", "fixed", "per_row"),
    [({4: 12.0}, 0.0, 3.0), ({2: 10.0, 4: 8.0}, 8.0, 0.0), ({2: 1.0, 4: 8.0}, 0.0, 2.0)],
    ids=["one size", "noise: more rows are cheaper", "noise: nothing would cost less than nothing"],
)
def test_no_part_of_a_line_is_negative(measured: dict[int, float], fixed: float, per_row: float) -> None:
    line = Line.through(measured)
    assert line.fixed == pytest.approx(fixed)
    assert line.per_row == pytest.approx(per_row)


# Capacities --------------------------------------------------------------------------------------


def test_capacities_on_machines_of_their_own() -> None:
    found = capacities(COSTS, deployed(8, cores=2.0, actor_cores=4.0, bits_per_second=4e6))
    # A call for all 32 rows: 1 + 4 ms. On the wire 1025 bytes a step.
    learning = 0.5 / 4 + 5 / 32 + 0.1
    assert found == {
        name: pytest.approx(rate)
        for name, rate in {
            "actor processes": 8 / (6 * MS / 4),
            "actor cores": 4 / (6 * MS / 4),
            "event loop": 4 / (0.25 * MS),
            "inference threads": 32 / (5 * MS),
            "training": 1 / (0.1 * MS),
            "learner cores": 2 / (learning * MS),
            "network": 4e6 / (8 * 1025),
        }.items()
    }


def test_shared_cores_do_everything() -> None:
    found = capacities(COSTS, deployed(8, cores=2.0, actor_cores=0.0))
    everything = 6 / 4 + 0.5 / 4 + 5 / 32 + 0.1
    assert found["cores"] == pytest.approx(2 / (everything * MS))
    assert not {"actor cores", "learner cores", "network", "accelerator"} & set(found)


def test_an_accelerator_takes_the_work_off_the_cores() -> None:
    costs = dataclasses.replace(
        COSTS,
        policy_call=Line(1 * MS, 0.0),
        training=0.0,
        accelerated_row=0.01 * MS,
        accelerated_training=0.03 * MS,
    )
    found = capacities(costs, deployed(8, cores=2.0))
    assert found["accelerator"] == pytest.approx(1 / (0.04 * MS))
    assert found["training"] == pytest.approx(1 / (0.03 * MS))
    # A thread waits for what it has asked for: 1 ms of its own and 32 rows.
    assert found["inference threads"] == pytest.approx(32 / (1.32 * MS))
    assert found["learner cores"] == pytest.approx(2 / ((0.5 / 4 + 1 / 32) * MS))


def test_what_keeps_several_cores_busy_is_done_sooner_for_the_same_work() -> None:
    costs = dataclasses.replace(COSTS, policy_parallelism=2.0, training_parallelism=4.0)
    found, before = capacities(costs, deployed(8)), capacities(COSTS, deployed(8))
    assert found["training"] == pytest.approx(4 * before["training"])
    # Of a call the part for each row alone: 1 + 4 / 2 ms.
    assert found["inference threads"] == pytest.approx(32 / (3 * MS))
    assert found["learner cores"] == pytest.approx(before["learner cores"])


def test_a_policy_call_has_its_most_rows() -> None:
    found = capacities(COSTS, deployed(8, max_rows=10))
    # Two messages of 4 fit: a call for 8 rows takes 2 ms.
    assert found["inference threads"] == pytest.approx(8 / (2 * MS))
    two = capacities(COSTS, deployed(8, inference_threads=2))
    # Each thread finds half of the actors: a call for 16 rows takes 3 ms.
    assert two["inference threads"] == pytest.approx(2 * 16 / (3 * MS))


def test_an_event_loop_that_calls_the_policy_does_both_by_turns() -> None:
    found = capacities(AT_ONCE, deployed(8))
    # A turn for 8 messages: 2 ms for them, 5 ms for their call.
    assert found["event loop"] == pytest.approx(32 / (7 * MS))
    assert "inference threads" not in found
    # It is the same work.
    others = {name: rate for name, rate in found.items() if name != "event loop"}
    assert others.items() <= capacities(COSTS, deployed(8)).items()


def test_inference_threads_do_not_matter_where_the_event_loop_acts() -> None:
    for actors in (1, 8, 100):
        four = predict(AT_ONCE, deployed(actors, cores=2.0, inference_threads=4))
        assert four == predict(AT_ONCE, deployed(actors, cores=2.0))


# Predictions -------------------------------------------------------------------------------------


def test_one_actor_alone_makes_a_round_trip_after_the_other() -> None:
    found = predict(COSTS, deployed(1))
    # 6 ms in the actor, 0.5 ms for the message, 1.5 ms for a call of its 4 rows.
    assert found.rate == pytest.approx(4 / (8 * MS))
    assert found.bound_by == ROUND_TRIPS
    assert found.batch == pytest.approx(4)
    assert found.actor_idle == pytest.approx(2 / 8)
    assert found.event_loop_busy == pytest.approx(0.25 / 8)
    assert found.inference_busy == pytest.approx(1.5 / 8)
    assert found.training_busy == pytest.approx(0.4 / 8)
    assert found.bytes_per_second == pytest.approx(4100 / (8 * MS))


def test_the_network_takes_its_time_too() -> None:
    # 4100 bytes at 32.8 Mbit/s are 1 ms.
    found = predict(COSTS, deployed(1, bits_per_second=32.8e6))
    assert found.rate == pytest.approx(4 / (9 * MS))


def test_two_actors_on_two_shared_cores_do_not_wait_for_cores() -> None:
    alone = predict(COSTS, deployed(2, cores=PLENTY, actor_cores=0.0))
    shared = predict(COSTS, deployed(2, cores=2.4, actor_cores=0.0))
    assert shared.rate == pytest.approx(alone.rate)


def test_one_shared_core_is_all_there_is() -> None:
    found = predict(COSTS, deployed(50, cores=1.0, actor_cores=0.0))
    assert found.first == found.bound_by == "cores"
    assert found.rate == pytest.approx(found.capacities["cores"], rel=0.06)
    assert found.utilisation("cores") <= 1


@pytest.mark.parametrize(
    ("changes", "deployment", "first"),
    [
        ({}, {"actor_cores": 4.0}, "actor cores"),
        ({}, {"cores": 1.0}, "learner cores"),
        ({"event_loop": Line(5 * MS, 0.0)}, {}, "event loop"),
        ({"on_event_loop": True}, {}, "event loop"),
        ({"policy_call": Line(0.0, 1 * MS)}, {}, "inference threads"),
        ({"training": 2 * MS}, {}, "training"),
        ({}, {"bits_per_second": 1e5}, "network"),
        ({"accelerated_row": 1 * MS, "accelerated_training": 1 * MS}, {}, "accelerator"),
    ],
)
def test_with_many_actors_the_bottleneck_sets_the_rate(
    changes: dict[str, Line | float], deployment: dict[str, float], first: str
) -> None:
    costs = dataclasses.replace(COSTS, **changes)  # type: ignore[arg-type]
    found = predict(costs, deployed(400, **deployment))
    assert found.first == found.bound_by == first
    assert 0.85 * found.capacities[first] < found.rate <= found.capacities[first]


def test_more_actors_are_never_slower_and_wait_longer() -> None:
    found = [predict(COSTS, deployed(number, cores=3.0)) for number in (1, 2, 4, 8, 16, 32)]
    rates = [each.rate for each in found]
    assert rates == sorted(rates)
    assert [each.batch for each in found] == sorted(each.batch for each in found)
    assert all(each.rate <= 1.0001 * min(each.capacities.values()) for each in found)


def test_a_call_takes_what_came_while_the_last_one_ran() -> None:
    deployment = deployed(100)
    # k messages in a call, which takes 1 + 0.5 k ms: at 1 message a ms, k = 1 + 0.5 k, so 2.
    trip = round_trip(COSTS, deployment, 4 / MS)
    assert trip.batch == pytest.approx(2.0, rel=0.01)
    assert trip.inference_busy == pytest.approx(1.0, rel=0.01)


def test_an_event_loops_turn_takes_what_came_during_the_last_one() -> None:
    # k messages in a turn of 0.25 k + 1 + 0.5 k ms: at 0.8 messages a ms, k = 0.8 + 0.6 k, so 2.
    trip = round_trip(AT_ONCE, deployed(100), 0.8 * 4 / MS)
    assert trip.batch == pytest.approx(2.0, rel=0.01)
    assert trip.event_loop_busy == pytest.approx(1.0, rel=0.01)
    # The call for 8 rows is 2 ms of the 2.5.
    assert trip.inference_busy == pytest.approx(0.8, rel=0.01)
    # 6 ms in the actor, 0.25 ms in the learner's other threads, half a turn of others and its own.
    assert trip.seconds == pytest.approx((6 + 0.25 + 2.5 * 0.99 / 2 + 2.5) * MS, rel=0.01)


def test_one_actor_does_not_care_who_answers() -> None:
    assert predict(AT_ONCE, deployed(1)).rate == pytest.approx(predict(COSTS, deployed(1)).rate)
    found = predict(AT_ONCE, deployed(1))
    assert found.event_loop_busy == pytest.approx(1.75 / 8)
    assert found.inference_busy == pytest.approx(1.5 / 8)


def test_in_lock_step_acting_and_training_take_turns() -> None:
    apart, lock_step = (predict(COSTS, deployed(1, lock_step=each)) for each in (False, True))
    assert 1 / lock_step.rate == pytest.approx(1 / apart.rate + 0.1 * MS)


def test_actors_fed_are_as_many_as_the_slowest_part_of_the_learner_takes() -> None:
    # Calls of any size make at most 8,000 steps/s, training 10,000; an actor alone makes 500.
    assert predict(COSTS, deployed(4)).actors_fed == 15
    faster = dataclasses.replace(COSTS, policy_parallelism=2.0)
    alone = 4 / ((6 + 0.5 + 1.25) * MS)
    assert predict(faster, deployed(4)).actors_fed == int(1 / (0.1 * MS) / alone)
    assert predict(dataclasses.replace(COSTS, training=4 * MS), deployed(4)).actors_fed == 0
    # An event loop that acts too: 4 rows for 0.25 + 0.5 ms in the largest turns.
    assert predict(AT_ONCE, deployed(4)).actors_fed == int(4 / (0.75 * MS) / 500)


def test_lag_grows_with_environments_and_with_a_full_queue() -> None:
    free = predict(COSTS, deployed(4))
    assert policy_lag(deployed(4), free, batch_size=8, queue_capacity=16) == 16 / 16 + 0.5
    slow = predict(dataclasses.replace(COSTS, training=40 * MS), deployed(4))
    assert policy_lag(deployed(4), slow, batch_size=8, queue_capacity=16) == 16 / 16 + 1 + 2


def test_no_network_limit_is_no_resource() -> None:
    assert deployed(1).bits_per_second == math.inf
    assert "network" not in capacities(COSTS, deployed(1))
