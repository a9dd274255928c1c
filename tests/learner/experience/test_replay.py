"""The replay's index against slow, obvious truth: what is kept, what is drawn, and how often."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.experience.replay import MIN_PRIORITY, Replay, Sample

COLUMNS = 30


@dataclass
class Unroll:
    column: int
    serial: int
    continues: int


@dataclass
class World:
    """Unrolls that finish in some slots, and which of them a replay of this capacity must keep."""

    replay: Replay
    capacity: int
    unrolls: int
    free: list[int] = field(default_factory=lambda: list(range(COLUMNS)))
    kept: list[Unroll] = field(default_factory=list)
    newest: dict[int, int] = field(default_factory=dict)
    """serial of each slot's newest unroll in its present lease"""
    serial: int = 0

    def finish(self, *slots: int) -> None:
        """Each of these slots finishes an unroll."""
        new = []
        for slot in slots:
            new.append(Unroll(self.free.pop(), self.serial, self.newest.get(slot, -1)))
            self.newest[slot] = self.serial
            self.serial += 1
        self.kept += new
        gone, self.kept = self.kept[: -self.capacity], self.kept[-self.capacity :]
        evicted = self.replay.insert(
            np.array([u.column for u in new], np.int64),
            np.array([u.serial for u in new], np.int64),
            np.array([u.continues for u in new], np.int64),
        )
        assert evicted.tolist() == [u.column for u in gone]
        self.free += evicted.tolist()

    def items(self) -> dict[int, list[int]]:
        """Serial of the first unroll, and the columns, of everything that may be drawn."""
        after = {u.continues: u for u in self.kept}
        items = {}
        for first in self.kept:
            chain = [first]
            while len(chain) < self.unrolls and chain[-1].serial in after:
                chain.append(after[chain[-1].serial])
            if len(chain) == self.unrolls:
                items[first.serial] = [u.column for u in chain]
        return items


def make(
    capacity: int = 10, unrolls: int = 1, windows: int = 1, alpha: float = 1.0, seed: int = 0
) -> World:
    replay = Replay(
        COLUMNS,
        capacity,
        np.random.default_rng(seed),
        unrolls=unrolls,
        windows=windows,
        priority_exponent=alpha,
    )
    return World(replay, capacity, unrolls)


def columns_of(sample: Sample) -> list[list[int]]:
    return sample.columns.T.tolist()


@settings(deadline=None, database=None, max_examples=80)
@given(
    unrolls=st.integers(1, 4),
    capacity=st.integers(1, 12),
    alpha=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 2**31),
    story=st.lists(
        st.one_of(
            st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True),
            st.integers(0, 3),
            st.just("update"),
        ),
        max_size=40,
    ),
)
def test_draws_whole_sequences_of_one_lease_that_are_kept(
    unrolls: int, capacity: int, alpha: float, seed: int, story: list[list[int] | int | str]
) -> None:
    """`story`: slots that finish an unroll, a slot whose lease ends, or new priorities."""
    world = make(capacity, unrolls, alpha=alpha, seed=seed)
    rng = np.random.default_rng(seed)
    old: list[Sample] = []
    for event in story:
        if isinstance(event, list):
            world.finish(*event)
        elif isinstance(event, int):
            world.newest.pop(event, None)
        elif old:
            world.replay.update(old[rng.integers(len(old))], rng.exponential(size=5).astype(np.float32))
        items = world.items()
        assert world.replay.kept().tolist() == [u.column for u in world.kept]
        assert world.replay.statistics()["items"] == len(items)
        assert world.replay.has_items == bool(items)
        if items:
            sample = world.replay.sample(5)
            assert columns_of(sample) == [items[serial] for serial in sample.serials.tolist()]
            assert sample.offsets.tolist() == [0] * 5
            old.append(sample)


def test_nothing_is_drawn_before_it_is_whole() -> None:
    world = make(unrolls=3)
    world.finish(0)
    world.finish(0)
    assert not world.replay.has_items
    with pytest.raises(ValueError, match="expected leaves with a total above 0"):
        world.replay.sample(1)
    world.finish(0)
    assert columns_of(world.replay.sample(2)) == [[29, 28, 27]] * 2


def test_a_lease_that_ended_is_not_gone_on_with() -> None:
    world = make(unrolls=2)
    world.finish(0)
    world.newest.pop(0)
    world.finish(0)
    assert not world.replay.has_items
    world.finish(0)
    assert columns_of(world.replay.sample(1)) == [[28, 27]]


def test_items_are_lost_with_their_first_unroll() -> None:
    world = make(capacity=3, unrolls=2)
    for _ in range(3):
        world.finish(0)
    assert {tuple(c) for c in columns_of(world.replay.sample(40))} == {(29, 28), (28, 27)}
    world.finish(1)  # evicts column 29
    assert {tuple(c) for c in columns_of(world.replay.sample(40))} == {(28, 27)}


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_frequencies_follow_priorities(alpha: float) -> None:
    world = make(capacity=6, alpha=alpha)
    world.finish(0, 1, 2, 3, 4, 5)
    priorities = np.array([0.1, 0.5, 1, 2, 3, 7], np.float32)
    serials = np.arange(6)
    columns = np.array([u.column for u in world.kept])
    world.replay.update(Sample(columns[None], np.zeros(6, int), serials, np.ones(6)), priorities)

    draws = 40_000
    counts = Counter(
        serial for _ in range(draws // 100) for serial in world.replay.sample(100).serials.tolist()
    )

    expected = priorities**alpha / (priorities**alpha).sum()
    found = np.array([counts[serial] for serial in serials]) / draws
    np.testing.assert_allclose(found, expected, atol=0.01)


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_importance_weights_are_those_of_the_paper(beta: float) -> None:
    world = make(capacity=6, alpha=0.7)
    world.finish(0, 1, 2, 3, 4, 5)
    columns = np.array([u.column for u in world.kept])
    priorities = np.array([0.1, 0.5, 1, 2, 3, 7], np.float32)
    world.replay.update(Sample(columns[None], np.zeros(6, int), np.arange(6), np.ones(6)), priorities)

    sample = world.replay.sample(50, beta)

    probability = (priorities**0.7 / (priorities**0.7).sum())[sample.serials]
    weights = (6 * probability) ** -beta
    np.testing.assert_allclose(sample.weights, weights / weights.max(), rtol=1e-5)
    assert sample.weights.dtype == np.float32


def test_new_items_have_the_largest_priority_that_was_seen() -> None:
    world = make(capacity=3)
    world.finish(0)
    world.replay.update(world.replay.sample(1), np.array([5.0], np.float32))
    world.replay.update(world.replay.sample(1), np.array([0.01], np.float32))
    world.finish(1)
    drawn = Counter(world.replay.sample(501).serials.tolist())
    assert drawn[0] <= 2
    assert drawn[1] >= 499
    assert world.replay.statistics()["max_priority"] == pytest.approx(5, rel=0.01)


def test_priorities_of_what_was_evicted_are_left_out_though_its_column_is_in_use_again() -> None:
    world = make(capacity=1)
    world.finish(0)
    old = world.replay.sample(2)
    world.finish(0)  # into another column, and evicts the first
    world.finish(0)  # into the first one's column
    assert world.replay.sample(1).columns.tolist() == old.columns[:, :1].tolist()
    world.replay.update(old, np.array([100.0, 100.0], np.float32))
    statistics = world.replay.statistics()
    assert (statistics["stale_priorities"], statistics["max_priority"]) == (2, 1)


@pytest.mark.parametrize("priority", [np.nan, np.inf])
def test_a_priority_that_is_not_finite_changes_nothing(priority: float) -> None:
    world = make(capacity=2)
    world.finish(0)
    world.replay.update(world.replay.sample(1), np.array([priority], np.float32))
    assert world.replay.statistics()["max_priority"] == 1
    assert world.replay.sample(1).serials.tolist() == [0]


def test_what_has_no_error_left_can_still_be_drawn() -> None:
    world = make(capacity=2)
    world.finish(0, 1)
    for serial in range(2):
        column = world.kept[serial].column
        sample = Sample(np.array([[column]]), np.zeros(1, int), np.array([serial]), np.ones(1))
        world.replay.update(sample, np.zeros(1, np.float32))
    assert set(world.replay.sample(2).serials.tolist()) == {0, 1}
    assert MIN_PRIORITY > 0


def test_windows_begin_anywhere_and_have_priorities_of_their_own() -> None:
    world = make(capacity=2, windows=4)
    world.finish(0, 1)
    assert world.replay.statistics()["items"] == 8
    sample = world.replay.sample(8)
    drawn = sorted(zip(sample.serials.tolist(), sample.offsets.tolist(), strict=True))
    assert drawn == [(serial, offset) for serial in range(2) for offset in range(4)]
    world.replay.update(sample, np.where(sample.offsets == 2, 1.0, 1e-6).astype(np.float32))
    assert set(world.replay.sample(100).offsets.tolist()) == {2}


def test_windows_of_several_unrolls_are_refused() -> None:
    with pytest.raises(ValueError, match="expected items of several unrolls or windows of one"):
        make(unrolls=2, windows=2)


def test_one_absurd_priority_is_neither_all_that_is_drawn_nor_for_ever() -> None:
    world = make(capacity=20)
    world.finish(*range(20))
    absurd = world.replay.sample(1)
    world.replay.update(absurd, np.array([1e27], np.float32))
    assert world.replay.statistics()["max_priority"] == 10
    drawn = Counter(world.replay.sample(2900).serials.tolist())
    assert drawn[int(absurd.serials[0])] == pytest.approx(1000, rel=0.2), "10 of 29"
    for _ in range(2500):
        world.replay.update(absurd, np.array([1.0], np.float32))
    assert world.replay.statistics()["max_priority"] == 1
