"""The names and attributes by which legacy gym is recognised; gym itself need not be installed."""

from typing import Any

import numpy as np


class Env:
    @property
    def unwrapped(self) -> "Env":
        return self


class Space:
    pass


class Box(Space):
    def __init__(self, low: np.ndarray, high: np.ndarray, dtype: Any) -> None:
        self.low, self.high, self.dtype, self.shape = low, high, dtype, low.shape


class Discrete(Space):
    def __init__(self, n: int) -> None:  # no `start`: gym had none before 0.22
        self.n = n


class SubDiscrete(Discrete):
    """Found by the name of its base."""


class MultiDiscrete(Space):
    def __init__(self, nvec: Any) -> None:
        self.nvec, self.dtype = np.asarray(nvec), np.dtype(np.int64)


class MultiBinary(Space):
    def __init__(self, n: int) -> None:
        self.n, self.shape = n, (n,)


class Dict(Space):
    def __init__(self, spaces: dict[str, Any]) -> None:
        self.spaces = spaces


class Tuple(Space):
    def __init__(self, spaces: Any) -> None:
        self.spaces = spaces


class Graph(Space):
    pass
