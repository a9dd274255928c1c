"""Which unrolls are kept, and which of them are drawn to be trained on again, by priority.

Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning" (R2D2);
Schaul et al. 2016, "Prioritized experience replay" (https://arxiv.org/abs/1511.05952).
"""

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from learner.experience.sum_tree import SumTree

MIN_PRIORITY = 1e-6
"""Least priority: what has been learnt may still be drawn, and the total stays above 0."""

HIGHEST_RISE = 10.0
"""How many times the largest priority so far a new one may be."""

MAX_PRIORITY_DECAY = 0.999
"""What is left of the largest priority, which new items get, after each batch without a larger one."""


class Sample(NamedTuple):
    """B items that were drawn."""

    columns: np.ndarray
    """int64 [k, B]: the unrolls of each item, of which each continues the one before"""
    offsets: np.ndarray
    """int64 [B]: row of the first unroll at which the item begins"""
    serials: np.ndarray
    """int64 [B]: serial of the first unroll, which tells whether it is still there"""
    weights: np.ndarray
    """float32 [B]: importance weights, the largest of them 1"""


class Replay:
    """The finished unrolls that are kept, by their column in the pool; it never touches their arrays.

    An *item* is what is drawn: `unrolls` consecutive unrolls of one lease, or one of the `windows`
    places in one unroll at which a shorter piece begins. It is known by its first unroll, and comes
    into being with its last. Unrolls are evicted oldest first, so an item is lost with its first.
    New items have the largest priority that was ever seen, so that all are trained on soon.

    `_lock` guards every field. The rows of an item stay as they are until the unroll is evicted, and so
    until the next `insert` by whoever samples.

    Args:
        columns: of the pool.
        capacity: most unrolls that are kept.
        rng: draws.
        unrolls: k, unrolls in an item.
        windows: places in an unroll at which an item may begin; 1 is row 0 alone.
        priority_exponent: alpha: items are drawn in proportion to priority^alpha; 0 is uniformly.
    """

    def __init__(
        self,
        columns: int,
        capacity: int,
        rng: np.random.Generator,
        *,
        unrolls: int = 1,
        windows: int = 1,
        priority_exponent: float = 0.0,
    ) -> None:
        if unrolls > 1 and windows > 1:
            raise ValueError("expected items of several unrolls or windows of one, found both")
        self.capacity, self.windows = capacity, windows
        self._rng = rng
        self._unrolls = unrolls
        self._exponent = priority_exponent
        self._tree = SumTree(columns * windows)
        self._kept: deque[int] = deque()
        self._column_of: dict[int, int] = {}
        self._serial = np.full(columns, -1, np.int64)
        self._previous = np.full(columns, -1, np.int64)
        self._next = np.full(columns, -1, np.int64)
        self._item = np.zeros(columns, bool)
        self._max_priority = 1.0
        self._evicted = 0
        self._stale = 0
        self._lock = threading.Lock()

    def insert(self, columns: np.ndarray, serials: np.ndarray, continues: np.ndarray) -> np.ndarray:
        """Keep finished unrolls.

        Args:
            columns: int64 [n], in the order in which they finished.
            serials: int64 [n], as in the pool.
            continues: int64 [n], as in the pool.

        Returns:
            The columns that are evicted for it, int64 [m]; they are the caller's to release.
        """
        with self._lock:
            new = [
                item
                for column, serial, before in zip(
                    columns.tolist(), serials.tolist(), continues.tolist(), strict=True
                )
                if (item := self._append(column, serial, before)) >= 0
            ]
            self._item[new] = True
            self._tree[self._leaves(np.array(new, np.int64))] = self._max_priority**self._exponent
            evicted = [self._kept.popleft() for _ in range(len(self._kept) - self.capacity)]
            self._forget(np.array(evicted, np.int64))
            return np.array(evicted, np.int64)

    def sample(self, count: int, importance_exponent: float = 0.0) -> Sample:
        """Draw `count` items, with replacement.

        Importance weights are (N P)^-beta, where P is the probability of the item, N the number of
        items and beta the `importance_exponent`, over the largest of the batch (Schaul et al. 2016,
        section 3.4).

        Raises:
            ValueError: there are no items.
        """
        with self._lock:
            leaves = self._tree.sample(self._rng, count)
            weights = self._tree[leaves] ** -importance_exponent
            first, offsets = np.divmod(leaves, self.windows)
            chain = [first]
            for _ in range(self._unrolls - 1):
                chain.append(self._next[chain[-1]])
            return Sample(
                np.stack(chain),
                offsets,
                self._serial[first],
                # N and the total stand in every weight of the batch, and so in none.
                (weights / weights.max()).astype(np.float32),
            )

    def update(self, sample: Sample, priorities: np.ndarray) -> None:
        """Give the items of a sample new priorities, float32 [B], at least 0.

        Items that were evicted meanwhile are left out, and so are priorities that are not finite: their
        update was skipped.
        """
        with self._lock:
            there = self._serial[sample.columns[0]] == sample.serials
            good = there & np.isfinite(priorities)
            self._stale += int((~there).sum())
            if good.any():
                # One absurd error must neither be all that is drawn, nor be so for ever.
                highest = HIGHEST_RISE * self._max_priority
                priorities = priorities[good].astype(np.float64).clip(MIN_PRIORITY, highest)
                fallen = MAX_PRIORITY_DECAY * self._max_priority
                self._max_priority = max(fallen, float(priorities.max()))
                leaves = sample.columns[0][good] * self.windows + sample.offsets[good]
                self._tree[leaves] = priorities**self._exponent

    @property
    def unrolls(self) -> int:
        """Unrolls that are kept."""
        with self._lock:
            return len(self._kept)

    @property
    def has_items(self) -> bool:
        """Whether anything can be drawn."""
        with self._lock:
            return self._tree.total > 0

    def kept(self) -> np.ndarray:
        """Columns of the unrolls that are kept, oldest first: int64 [n]."""
        with self._lock:
            return np.array(self._kept, np.int64)

    def priorities(self) -> tuple[np.ndarray, float]:
        """What the items of the kept unrolls are drawn in proportion to, float64 [n, windows], 0 where
        there is none; and the largest priority seen."""
        with self._lock:
            leaves = self._leaves(np.array(self._kept, np.int64))
            return self._tree[leaves].reshape(-1, self.windows), self._max_priority

    def set_priorities(self, proportions: np.ndarray, largest: float) -> None:
        """Give the kept unrolls' items what `priorities` gave, where they have come into being again."""
        with self._lock:
            columns = np.array(self._kept, np.int64)
            there = self._item[columns]
            self._tree[self._leaves(columns[there])] = proportions[there].reshape(-1)
            self._max_priority = largest

    def generator(self) -> dict[str, Any]:
        """What the next draw will be made of, as plain JSON values."""
        with self._lock:
            return dict(self._rng.bit_generator.state)

    def set_generator(self, state: Mapping[str, Any]) -> None:
        """Draw from here on what was drawn after `generator` gave this.

        Raises:
            KeyError, TypeError, ValueError: it is not what `generator` gave.
        """
        with self._lock:
            self._rng.bit_generator.state = dict(state)

    def statistics(self) -> Mapping[str, float]:
        with self._lock:
            return {
                "unrolls": len(self._kept),
                "capacity": self.capacity,
                "items": int(self._item.sum()) * self.windows,
                "evicted": self._evicted,
                "max_priority": self._max_priority,
                "stale_priorities": self._stale,
            }

    def _append(self, column: int, serial: int, continues: int) -> int:
        """Keep one unroll; the first unroll of the item that it completes, or -1."""
        before = self._column_of.get(continues, -1)
        self._kept.append(column)
        self._column_of[serial] = column
        self._serial[column], self._previous[column], self._next[column] = serial, before, -1
        if before >= 0:
            self._next[before] = column
        first = column
        for _ in range(self._unrolls - 1):
            first = int(self._previous[first]) if first >= 0 else -1
        return first

    def _forget(self, columns: np.ndarray) -> None:
        self._tree[self._leaves(columns)] = 0.0
        self._item[columns] = False
        for column in columns.tolist():
            del self._column_of[int(self._serial[column])]
            after = self._next[column]
            if after >= 0:
                self._previous[after] = -1
        self._serial[columns] = -1
        self._evicted += len(columns)

    def _leaves(self, columns: np.ndarray) -> np.ndarray:
        return (columns[:, None] * self.windows + np.arange(self.windows)).reshape(-1)
