"""A binary tree of sums: draws leaves in proportion to their values in O(log n), many at a time."""

import numpy as np


class SumTree:
    """`size` leaves, values of at least 0 that are 0 at first.

    Node 1 is the root, and node i has the children 2i and 2i + 1, so that a level of the tree is one
    vectorised step for any number of leaves. Sums are made anew from their two children, never by
    adding a difference: rounding does not add up, however long a run is. Not safe for several threads.
    """

    def __init__(self, size: int) -> None:
        self._levels = max(size - 1, 0).bit_length()
        self._base = 1 << self._levels
        self._nodes = np.zeros(2 * self._base)

    @property
    def total(self) -> float:
        """The sum of all leaves."""
        return float(self._nodes[1])

    def __getitem__(self, leaves: np.ndarray) -> np.ndarray:
        """Values of `leaves`, float64 [n]."""
        values: np.ndarray = self._nodes[leaves + self._base]
        return values

    def __setitem__(self, leaves: np.ndarray, values: np.ndarray | float) -> None:
        """Set `leaves`, int64 [n]; of a leaf that is named twice, the later value stays."""
        nodes = leaves + self._base
        self._nodes[nodes] = values
        for _ in range(self._levels):
            nodes = nodes >> 1
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """`count` leaves, int64 [count], each with the probability value / total.

        Stratified (Schaul et al. 2016, "Prioritized experience replay", appendix B.2.1): one from each
        of `count` equal parts of the total, so that a batch follows the distribution closely.

        Raises:
            ValueError: all leaves are 0.
        """
        if not self.total > 0:
            raise ValueError(f"expected leaves with a total above 0, found {self.total}")
        # What is left to walk past of the sum below the node.
        rest = (np.arange(count) + rng.random(count)) * (self.total / count)
        nodes = np.ones(count, np.int64)
        for _ in range(self._levels):
            left, right = self._nodes[2 * nodes], self._nodes[2 * nodes + 1]
            # Rounding may leave a rest as large as the sum: a leaf of 0 must not be drawn for that.
            go_right = (rest >= left) & (right > 0)
            rest = np.where(go_right, rest - left, rest)
            nodes = 2 * nodes + go_right
        return nodes - self._base
