"""The rate limiter: the ratio it holds, and that one side may always go on."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.experience.rate_limiter import RateLimiter


def test_samples_wait_for_the_minimum_and_owe_nothing_of_it() -> None:
    limiter = RateLimiter(2.0, min_size=10, batch=4)
    limiter.inserted(9)
    assert not limiter.may_sample()
    limiter.inserted(1)
    assert limiter.may_sample()
    assert limiter.owed == 0


def test_samples_wait_while_they_are_ahead() -> None:
    limiter = RateLimiter(2.0, min_size=0, batch=4)
    limiter.sampled()
    assert not limiter.may_sample()
    limiter.inserted(1)
    assert not limiter.may_sample()
    limiter.inserted(1)
    assert limiter.may_sample()


def test_inserts_wait_while_they_are_ahead_by_more_than_a_batch() -> None:
    limiter = RateLimiter(2.0, min_size=10, batch=4)
    assert limiter.insertable() == 12
    limiter.inserted(11)
    assert limiter.insertable() == 1
    limiter.inserted(1)
    assert limiter.insertable() == 0
    limiter.sampled()
    assert limiter.insertable() == 2


@settings(deadline=None, database=None)
@given(
    ratio=st.floats(0.01, 300),
    min_size=st.integers(0, 500),
    unroll=st.integers(1, 80),
    batch=st.integers(1, 5000),
    choices=st.lists(st.booleans(), min_size=300, max_size=300),
)
def test_one_side_may_always_go_on_and_the_ratio_holds(
    ratio: float, min_size: int, unroll: int, batch: int, choices: list[bool]
) -> None:
    limiter = RateLimiter(ratio, min_size, batch=batch)
    inserted = sampled = 0
    for prefers_inserts in choices:
        may_insert, may_sample = limiter.insertable() > 0, limiter.may_sample()
        assert may_insert or may_sample
        if may_insert and (prefers_inserts or not may_sample):
            limiter.inserted(unroll)
            inserted += unroll
        else:
            limiter.sampled()
            sampled += batch
        owed = ratio * (inserted - min_size) - sampled
        assert -batch - ratio * min_size <= owed + 1e-6
        assert owed <= batch + ratio * unroll + 1e-6


def test_state_goes_on_where_it_was_saved() -> None:
    limiter, other = (RateLimiter(2.0, min_size=3, batch=4) for _ in range(2))
    limiter.inserted(7)
    limiter.sampled()
    other.restore(limiter.state())
    assert other.owed == limiter.owed == 4
    assert other.state() == limiter.state()
    other.inserted(2)
    statistics = other.statistics()
    assert (statistics["inserted"], statistics["sampled"]) == (9, 4)
    assert (statistics["inserted_since_start"], statistics["sampled_since_start"]) == (2, 0)


def test_statistics_say_the_ratio_and_who_waited() -> None:
    limiter = RateLimiter(2.0, min_size=2, batch=4)
    assert limiter.statistics()["samples_per_insert"] == 0
    limiter.inserted(6)
    limiter.sampled()
    limiter.sample_waited()
    limiter.insert_waited()
    limiter.insert_waited()
    assert limiter.statistics() == {
        "inserted": 6,
        "sampled": 4,
        "inserted_since_start": 6,
        "sampled_since_start": 4,
        "samples_per_insert": pytest.approx(1.0),
        "sample_waits": 1,
        "insert_waits": 2,
    }
