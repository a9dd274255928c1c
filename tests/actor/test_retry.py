"""How a client waits: growing, jittered, and not for ever."""

import itertools

import pytest

from actor.retry import RetryPolicy


class Clock:
    """Time that passes only while someone sleeps, or by `passes`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_delays_double_up_to_the_maximum() -> None:
    clock = Clock()
    policy = RetryPolicy(initial_seconds=0.5, max_seconds=3.0, clock=clock, random=lambda: 1.0)
    attempts = list(itertools.islice(policy.attempts(clock.sleep), 6))
    assert attempts == [0, 1, 2, 3, 4, 5]
    assert clock.slept == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_the_first_attempt_does_not_wait() -> None:
    clock = Clock()
    next(RetryPolicy(clock=clock).attempts(clock.sleep))
    assert clock.slept == []


def test_jitter_takes_any_part_of_the_delay() -> None:
    clock = Clock()
    draws = iter([0.0, 0.25, 0.999])
    policy = RetryPolicy(initial_seconds=1.0, clock=clock, random=lambda: next(draws))
    list(itertools.islice(policy.attempts(clock.sleep), 4))
    assert clock.slept == [0.0, 0.5, 3.996]


def test_two_clients_draw_different_delays() -> None:
    one, other = RetryPolicy(), RetryPolicy()
    assert [one.random() for _ in range(3)] != [other.random() for _ in range(3)]


def test_it_gives_up_when_the_next_delay_would_end_too_late() -> None:
    clock = Clock()
    policy = RetryPolicy(
        initial_seconds=1.0, max_seconds=4.0, give_up_seconds=7.5, clock=clock, random=lambda: 1.0
    )
    assert list(policy.attempts(clock.sleep)) == [0, 1, 2, 3]
    assert clock.slept == [1.0, 2.0, 4.0]


def test_the_time_that_attempts_take_counts() -> None:
    clock = Clock()
    policy = RetryPolicy(initial_seconds=1.0, give_up_seconds=10.0, clock=clock, random=lambda: 1.0)
    made = 0
    for _ in policy.attempts(clock.sleep):
        made += 1
        clock.now += 6.0
    assert made == 2


def test_time_counts_from_the_first_attempt() -> None:
    clock = Clock()
    policy = RetryPolicy(initial_seconds=1.0, give_up_seconds=2.0, clock=clock, random=lambda: 1.0)
    attempts = policy.attempts(clock.sleep)
    clock.now += 100.0
    assert [next(attempts), next(attempts)] == [0, 1]


def test_it_gives_up_when_there_is_nothing_left_to_wait_for() -> None:
    clock = Clock()
    asked: list[int] = []

    def give_up() -> bool:
        asked.append(len(clock.slept))
        return len(asked) == 3

    policy = RetryPolicy(give_up_when=give_up, clock=clock, random=lambda: 1.0)
    assert list(policy.attempts(clock.sleep)) == [0, 1, 2]
    assert asked == [0, 1, 2], "after each attempt that failed, before the waiting"


@pytest.mark.parametrize("give_up_seconds", [None, 1e9])
def test_waiting_long_overflows_nothing(give_up_seconds: float | None) -> None:
    clock = Clock()
    policy = RetryPolicy(give_up_seconds=give_up_seconds, clock=clock, random=lambda: 1.0)
    for _ in itertools.islice(policy.attempts(clock.sleep), 2000):
        pass
    assert clock.slept[-1] == 5.0
