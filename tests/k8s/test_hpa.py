"""The autoscaler's law against cases worked by hand, after the examples of Kubernetes' documentation."""

import dataclasses

import pytest

from tests.k8s.hpa import Autoscaler, Direction, Policy, Rule, quantity

FREE = Direction(0.0, (Policy(percent=True, value=1000, period_seconds=15.0),), "Max")
RULE = Rule(lowest=1, highest=1000, target=1.0, up=FREE, down=FREE)


@pytest.mark.parametrize(
    ("text", "value"), [("900m", 0.9), ("2", 2.0), (3, 3.0), ("1k", 1000.0)], ids=str
)
def test_quantities(text: str | float, value: float) -> None:
    assert quantity(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("metric", "desired"),
    [(10.9, 10), (11.1, 12), (9.1, 10), (8.9, 9), (20.0, 20), (None, 10)],
    ids=["within", "rounded up", "within, below", "below", "twice", "no number"],
)
def test_ten_replicas_are_held_within_a_tenth(metric: float | None, desired: int) -> None:
    assert Autoscaler(RULE).sync(0.0, 10, metric) == desired


def test_replicas_out_of_bounds_come_back_whatever_the_metric() -> None:
    bounded = dataclasses.replace(RULE, lowest=3, highest=8)
    assert Autoscaler(bounded).sync(0.0, 10, None) == 8
    assert Autoscaler(bounded).sync(0.0, 2, None) == 3


def test_the_smallest_of_the_window_is_taken_upwards() -> None:
    rule = dataclasses.replace(RULE, up=dataclasses.replace(FREE, window_seconds=60.0))
    autoscaler = Autoscaler(rule)
    assert autoscaler.sync(0.0, 10, 10.0) == 10
    assert autoscaler.sync(15.0, 10, 30.0) == 10
    assert autoscaler.sync(45.0, 10, 20.0) == 10
    assert autoscaler.sync(61.0, 10, 30.0) == 20


def test_the_largest_of_the_window_is_taken_downwards() -> None:
    rule = dataclasses.replace(RULE, down=dataclasses.replace(FREE, window_seconds=300.0))
    autoscaler = Autoscaler(rule)
    assert autoscaler.sync(0.0, 10, 10.0) == 10
    assert autoscaler.sync(15.0, 10, 2.0) == 10
    assert autoscaler.sync(285.0, 10, 5.0) == 10
    assert autoscaler.sync(301.0, 10, 2.0) == 5


def test_policies_count_what_was_changed_in_their_period() -> None:
    up = Direction(0.0, (Policy(True, 100, 60.0), Policy(False, 4, 60.0)), "Max")
    down = Direction(0.0, (Policy(True, 10, 60.0),), "Max")
    autoscaler = Autoscaler(dataclasses.replace(RULE, up=up, down=down))
    # Four pods or twice as many, whichever is more.
    assert autoscaler.sync(0.0, 1, 100.0) == 5
    assert autoscaler.sync(15.0, 5, 100.0) == 5
    assert autoscaler.sync(61.0, 5, 100.0) == 10
    # A tenth of what there was a minute ago: 5 pods were added since.
    assert autoscaler.sync(62.0, 10, 1.0) == 4
    fresh = Autoscaler(autoscaler.rule)
    assert fresh.sync(200.0, 100, 1.0) == 90
    assert fresh.sync(230.0, 90, 1.0) == 90
    assert fresh.sync(261.0, 90, 1.0) == 81


def test_a_small_fleet_shrinks_too() -> None:
    down = Direction(0.0, (Policy(True, 10, 60.0),), "Max")
    assert Autoscaler(dataclasses.replace(RULE, down=down)).sync(0.0, 3, 1.0) == 2


def test_the_more_careful_policy_where_it_is_asked_for() -> None:
    both = (Policy(True, 100, 60.0), Policy(False, 4, 60.0))
    careful = dataclasses.replace(RULE, up=Direction(0.0, both, "Min"))
    assert Autoscaler(careful).sync(0.0, 10, 100.0) == 14
