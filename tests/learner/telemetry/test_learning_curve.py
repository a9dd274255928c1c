"""Returns over time in bounded memory."""

import json

import numpy as np
import pytest

from learner.telemetry.learning_curve import CurvePoint, LearningCurve, running_mean


def test_every_episode_is_a_point_while_there_is_room() -> None:
    curve = LearningCurve(capacity=4)
    curve.add(10, 1.0, 5.0)
    curve.add(20, 2.0, 7.0)
    assert curve.snapshot() == ([CurvePoint(10, 1.0, 5.0), CurvePoint(20, 2.0, 7.0)], 1)


def test_full_curve_merges_pairs_and_goes_on_at_that_resolution() -> None:
    curve = LearningCurve(capacity=4)
    for episode in range(1, 9):
        curve.add(episode * 10, float(episode), float(episode))
    points, size = curve.snapshot()
    assert size == 4
    assert points == [CurvePoint(40, 4.0, 2.5), CurvePoint(80, 8.0, 6.5)]


def test_memory_is_bounded_and_the_mean_is_kept() -> None:
    curve = LearningCurve(capacity=64)
    returns = np.random.default_rng(0).normal(size=64 * 32)
    for episode, value in enumerate(returns):
        curve.add(episode, 0.0, float(value))
        assert len(curve.snapshot().points) < 64
    points, size = curve.snapshot()
    covered = returns[: len(points) * size]
    assert len(covered) == len(returns)
    assert np.mean([p.mean_return for p in points]) == pytest.approx(covered.mean())


def test_state_goes_through_json_and_the_curve_goes_on() -> None:
    whole, before = LearningCurve(8), LearningCurve(8)
    for episode in range(21):
        whole.add(episode, episode / 2, episode**0.5)
        before.add(episode, episode / 2, episode**0.5)
    after = LearningCurve(8)
    after.restore(json.loads(json.dumps(before.state())))
    for episode in range(21, 50):
        whole.add(episode, episode / 2, episode**0.5)
        after.add(episode, episode / 2, episode**0.5)
    assert after.snapshot() == whole.snapshot()


def test_a_smaller_capacity_takes_over_a_larger_curve() -> None:
    large, small = LearningCurve(100), LearningCurve(10)
    for episode in range(90):
        large.add(episode, 0.0, 1.0)
    small.restore(large.state())
    assert len(small.snapshot().points) < 10
    assert small.snapshot().episodes_per_point == 16


@pytest.mark.parametrize("capacity", [0, 1, 3])
def test_capacity_must_pair_up(capacity: int) -> None:
    with pytest.raises(ValueError, match=f"capacity {capacity}: expected an even number"):
        LearningCurve(capacity)


def test_running_mean_is_of_up_to_a_window() -> None:
    assert running_mean([1, 2, 3, 4], 2) == [1, 1.5, 2.5, 3.5]
    assert running_mean([1, 2, 3], 100) == [1, 1.5, 2]
    assert running_mean([], 3) == []
