"""The sum tree: its sums, and that it draws in proportion to them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.experience.sum_tree import SumTree

SETTINGS = settings(deadline=None, database=None, max_examples=60)

PRIORITIES = st.floats(0, 1e6, allow_subnormal=False)


@st.composite
def writes(draw: st.DrawFn) -> tuple[int, list[tuple[list[int], list[float]]]]:
    """A size, and several writes of leaves and their values."""
    size = draw(st.integers(1, 40))
    write = st.lists(st.tuples(st.integers(0, size - 1), PRIORITIES), min_size=1, max_size=10)
    chosen = draw(st.lists(write, max_size=8))
    return size, [([leaf for leaf, _ in one], [value for _, value in one]) for one in chosen]


@SETTINGS
@given(writes())
def test_total_is_the_sum_of_the_leaves(case: tuple[int, list[tuple[list[int], list[float]]]]) -> None:
    size, chosen = case
    tree, truth = SumTree(size), np.zeros(size)
    for leaves, values in chosen:
        tree[np.array(leaves)] = np.array(values)
        for leaf, value in zip(leaves, values, strict=True):
            truth[leaf] = value
        assert tree.total == pytest.approx(truth.sum(), rel=1e-12)
        np.testing.assert_array_equal(tree[np.arange(size)], truth)


@SETTINGS
@given(writes(), st.integers(0, 2**31), st.integers(1, 50))
def test_leaves_of_zero_are_never_drawn(
    case: tuple[int, list[tuple[list[int], list[float]]]], seed: int, count: int
) -> None:
    size, chosen = case
    tree = SumTree(size)
    for leaves, values in chosen:
        tree[np.array(leaves)] = np.array(values)
    if tree.total > 0:
        drawn = tree.sample(np.random.default_rng(seed), count)
        assert drawn.shape == (count,)
        assert (tree[drawn] > 0).all()


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_leaves_are_drawn_in_proportion_to_their_values(size: int) -> None:
    rng = np.random.default_rng(size)
    values = rng.gamma(0.5, size=size) * (rng.random(size) > 0.2)
    values[0] = 1.0
    tree = SumTree(size)
    tree[np.arange(size)] = values

    draws = 200_000
    counts = np.bincount(np.concatenate([tree.sample(rng, 100) for _ in range(draws // 100)]))

    found = np.zeros(size)
    found[: len(counts)] = counts / draws
    # Stratified draws spread less than independent ones, whose deviation this is.
    probability = values / values.sum()
    np.testing.assert_array_less(
        np.abs(found - probability), 4 * np.sqrt(probability * (1 - probability) / draws) + 1e-12
    )


def test_a_batch_is_stratified() -> None:
    tree = SumTree(8)
    tree[np.arange(8)] = 1.0
    rng = np.random.default_rng(0)
    for _ in range(20):
        assert sorted(tree.sample(rng, 8)) == list(range(8))


def test_the_edge_of_the_last_leaf_is_not_stepped_over() -> None:
    """Rounding may bring a draw up to the total, where there is nothing but leaves of 0."""

    class Ones(np.random.Generator):
        def random(self, *args: object, **kwargs: object) -> np.ndarray:  # type: ignore[override]
            return np.ones(3)

    tree = SumTree(8)
    tree[np.array([1, 4])] = [0.1, 0.7]
    assert tree.sample(Ones(np.random.PCG64(0)), 3).tolist() == [4, 4, 4]


def test_an_empty_tree_cannot_be_drawn_from() -> None:
    tree = SumTree(4)
    with pytest.raises(ValueError, match=r"expected leaves with a total above 0, found 0\.0"):
        tree.sample(np.random.default_rng(0), 1)


def test_rounding_does_not_add_up() -> None:
    tree = SumTree(2)
    for _ in range(1000):
        tree[np.array([0])] = 1e16
        tree[np.array([0])] = 1.0
        tree[np.array([1])] = 0.1
    assert tree.total == 1.1
