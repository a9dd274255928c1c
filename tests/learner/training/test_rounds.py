"""Rounds: a group's learners make the same updates, and end together."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from learner.telemetry.episodes import EpisodeTracker
from learner.training.rounds import Rounds

TOTAL = 1000


class Others:
    """A group of this learner, number 1 of 3, and two that say what a test has them say."""

    size = 3
    index = 1

    def __init__(self, *said: Sequence[int]) -> None:
        self._said = iter(said)
        self.heard: list[list[int]] = []

    def sum(self, values: np.ndarray) -> np.ndarray:
        """steps, goal reached, and for each learner whether it is to end"""
        self.heard.append(values.tolist())
        return values + np.array(next(self._said))


def counted(steps: int) -> EpisodeTracker:
    episodes = EpisodeTracker(1)
    episodes.restore({**episodes.state(), "env_steps": steps})
    return episodes


def rounds(
    group: Any, batches: Any, episodes: EpisodeTracker | None = None, *, reached: bool = False
) -> Rounds:
    return Rounds(
        batches, group, episodes=episodes or counted(0), reached=lambda: reached, total_steps=TOTAL
    )


def test_a_round_goes_before_each_batch_and_after_the_last() -> None:
    group = Others([10, 0, 0, 0, 0], [20, 0, 0, 0, 0], [30, 0, 0, 0, 0])
    episodes = counted(5)
    held = rounds(group, ["first", "second"], episodes)
    assert list(held) == ["first", "second"]
    assert group.heard == [[5, 0, 0, 0, 0], [5, 0, 0, 0, 0], [5, 0, 0, 1, 0]]
    assert (episodes.env_steps, held.env_steps) == (35, 35)
    assert (held.finished, held.ended_by) == (False, 1)


def test_the_group_ends_when_all_have_made_the_steps_together() -> None:
    group = Others([500, 0, 0, 0, 0], [600, 0, 0, 0, 0])
    held = rounds(group, ["first", "second"], counted(400))
    assert list(held) == ["first"]
    assert (held.finished, held.ended_by) == (True, None)


@pytest.mark.parametrize("own", [False, True])
def test_it_ends_when_one_has_seen_the_goal_met(own: bool) -> None:
    held = rounds(Others([0, int(not own), 0, 0, 0]), ["first"], reached=own)
    assert list(held) == []
    assert (held.finished, held.ended_by) == (True, None)


def test_it_ends_with_one_that_is_to_end() -> None:
    held = rounds(Others([0, 0, 0, 0, 1]), ["first"])
    assert list(held) == []
    assert (held.finished, held.ended_by) == (False, 2)


def test_what_all_do_alike_is_made_of_the_steps_that_all_have_heard_of() -> None:
    episodes = counted(5)
    held = rounds(Others([10, 0, 0, 0, 0], [20, 0, 0, 0, 0]), ["first"], episodes)
    for _ in held:
        episodes.observe(np.zeros(1, np.int32), np.zeros(1, np.float32), np.zeros(1, np.uint8))
        assert (episodes.env_steps, held.env_steps) == (16, 15)


def test_the_round_waits_for_the_batch() -> None:
    group = Others([0, 0, 0, 0, 0], [0, 0, 0, 0, 0])

    def batches() -> Iterator[str]:
        assert group.heard == []
        yield "first"
        assert len(group.heard) == 1

    assert list(rounds(group, batches())) == ["first"]
