"""Rounds of evaluation: which episodes count, who waits, and what is remembered."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from learner.flags import LeaseEnd
from learner.telemetry.episodes import Episode
from learner.telemetry.evaluations import Evaluations
from protos import inference_pb2 as pb
from protos.errors import CheckpointError
from tests.learner.experience.running import Running


def steps(*first: int) -> Any:
    """Rows of the slots 0 to 3, of which `first` begin an episode."""
    flags = np.zeros(4, np.uint8)
    flags[list(first)] = pb.FIRST
    return SimpleNamespace(slots=np.arange(4, dtype=np.int32), flags=flags)


def ended(slot: int, episode_return: float) -> Episode:
    return Episode(slot, episode_return, length=1, env_steps=0, seconds=0.0)


def play(evaluations: Evaluations, *returns: tuple[int, float]) -> None:
    for slot, value in returns:
        evaluations.append(steps(slot))
        evaluations.add(ended(slot, value))


def test_a_round_has_the_result_of_its_episodes_and_of_its_moment() -> None:
    evaluations = Evaluations(4, 3)
    evaluations.begin(1000, 2.5, 7, environments=4)
    play(evaluations, (0, 1.0), (1, 2.0))
    assert evaluations.results() == []
    assert evaluations.under_way
    play(evaluations, (2, 6.0))
    assert not evaluations.under_way
    (result,) = evaluations.results()
    assert result == (1000, 2.5, 7, 3, 3.0, pytest.approx(np.std([1, 2, 6])), 1.0, 6.0)


def test_an_episode_that_began_before_the_round_does_not_count() -> None:
    evaluations = Evaluations(4, 1)
    evaluations.append(steps(0, 1))
    evaluations.begin(1, 0.0, 1, environments=4)
    evaluations.add(ended(0, 50.0))
    assert evaluations.results() == []
    play(evaluations, (1, 2.0))
    assert evaluations.results()[0].mean_return == 2.0


def test_an_episode_that_began_in_the_round_before_does_not_count() -> None:
    evaluations = Evaluations(4, 1)
    evaluations.begin(1, 0.0, 1, environments=4)
    evaluations.append(steps(0, 1))
    evaluations.add(ended(0, 1.0))
    evaluations.begin(2, 0.0, 2, environments=4)
    evaluations.add(ended(1, 50.0))
    assert len(evaluations.results()) == 1


def test_each_environment_plays_the_same_number_of_episodes() -> None:
    evaluations = Evaluations(4, 4)
    evaluations.begin(1, 0.0, 1, environments=2)
    play(evaluations, (0, 1.0), (0, 1.0), (0, 1.0), (0, 1.0))
    assert evaluations.under_way, "the short episodes of slot 0 do not stand for those of slot 1"
    play(evaluations, (1, 9.0), (1, 9.0))
    assert evaluations.results()[0].mean_return == 5.0


def test_a_lease_that_ends_takes_its_episode_with_it_and_its_heir_goes_on() -> None:
    evaluations = Evaluations(4, 2)
    evaluations.begin(1, 0.0, 1, environments=2)
    evaluations.append(steps(0, 1))
    evaluations.drop(np.array([0, 1]), LeaseEnd.CLOSED)
    evaluations.add(ended(0, 50.0))
    assert evaluations.results() == []
    play(evaluations, (2, 1.0), (3, 3.0))
    assert evaluations.results()[0].mean_return == 2.0


def test_those_that_are_left_play_what_others_owe() -> None:
    evaluations = Evaluations(4, 4)
    evaluations.begin(1, 0.0, 1, environments=2)
    play(evaluations, (0, 1.0), (1, 3.0))
    evaluations.drop(np.array([1]), LeaseEnd.CLOSED)
    play(evaluations, (0, 1.0), (0, 3.0))
    assert evaluations.results()[0].mean_return == 2.0


def test_a_lease_that_ends_between_rounds_changes_nothing_of_the_next() -> None:
    evaluations = Evaluations(4, 2)
    evaluations.drop(np.array([3]), LeaseEnd.CLOSED)
    evaluations.begin(1, 0.0, 1, environments=2)
    play(evaluations, (0, 1.0), (0, 1.0))
    assert evaluations.under_way


def test_actors_wait_between_rounds() -> None:
    evaluations = Evaluations(4, 1)
    actor = Running(evaluations.wait_for_room)
    actor.until_it_waits()
    evaluations.begin(1, 0.0, 1, environments=1)
    assert actor.result() is True
    assert evaluations.wait_for_room(), "a round is under way"
    play(evaluations, (0, 1.0))
    waiting = Running(evaluations.wait_for_room)
    waiting.until_it_waits()
    evaluations.close()
    assert waiting.result() is False


def test_there_is_room_while_a_round_is_under_way() -> None:
    evaluations = Evaluations(4, 1)
    assert not evaluations.has_room()
    evaluations.begin(1, 0.0, 1, environments=1)
    assert evaluations.has_room()
    evaluations.close()
    assert not evaluations.has_room()


def test_the_end_of_a_round_can_be_waited_for() -> None:
    evaluations = Evaluations(4, 1)
    assert evaluations.wait_for_end(0.0)
    evaluations.begin(1, 0.0, 1, environments=1)
    assert not evaluations.wait_for_end(0.0)
    waiting = Running(lambda: evaluations.wait_for_end(60.0))
    waiting.until_it_waits()
    play(evaluations, (0, 1.0))
    assert waiting.result() is True


def test_rounds_do_not_overlap_and_need_an_environment() -> None:
    evaluations = Evaluations(4, 1)
    with pytest.raises(ValueError, match="expected at least one environment, found none"):
        evaluations.begin(1, 0.0, 1, environments=0)
    evaluations.begin(1, 0.0, 1, environments=1)
    with pytest.raises(ValueError, match="expected no round under way, found round 1"):
        evaluations.begin(2, 0.0, 2, environments=1)


def test_the_best_is_the_first_with_the_highest_mean() -> None:
    evaluations = Evaluations(4, 1)
    assert evaluations.best() is None
    for version, value in enumerate([1.0, 5.0, 5.0, 2.0]):
        evaluations.begin(version, 0.0, version, environments=1)
        play(evaluations, (0, value))
    best = evaluations.best()
    assert best is not None
    assert best.version == 1


def test_results_survive_a_restart() -> None:
    evaluations = Evaluations(4, 1)
    evaluations.begin(10, 1.5, 3, environments=1)
    play(evaluations, (0, 4.0))
    heir = Evaluations(2, 1)
    heir.restore(evaluations.state())
    assert heir.results() == evaluations.results()
    assert heir.statistics() == {
        "rounds": 1,
        "episodes_played": 0,
        "mean_return": 4.0,
        "min_return": 4.0,
        "max_return": 4.0,
        "env_steps": 10,
        "policy_version": 3,
    }


@pytest.mark.parametrize("state", [[[1, 2]], [["x"] * 8], 3])
def test_a_damaged_state_is_refused(state: Any) -> None:
    with pytest.raises(CheckpointError, match="the checkpoint's evaluations are incomplete"):
        Evaluations(1, 1).restore(state)


def test_episodes_that_do_not_divide_are_shared_out_exactly() -> None:
    evaluations = Evaluations(4, 3)
    evaluations.begin(1, 0.0, 1, environments=2)
    play(evaluations, (0, 1.0), (0, 1.0), (1, 7.0), (1, 99.0))
    (result,) = evaluations.results()
    assert (result.episodes, result.mean_return) == (3, 3.0), "two of the first, one of the second"
