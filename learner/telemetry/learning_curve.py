"""Returns over time in bounded memory: for the picture, and for going on after a restart."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class CurvePoint(NamedTuple):
    """The mean of a few consecutive episodes."""

    env_steps: int
    """environment steps when the last of them ended"""
    seconds: float
    """seconds of training when the last of them ended"""
    mean_return: float


class Curve(NamedTuple):
    """A learning curve at one moment."""

    points: list[CurvePoint]
    episodes_per_point: int


class LearningCurve:
    """Keeps at most `capacity` points: when they are reached, neighbours merge in pairs.

    So every point stands for the same number of episodes, which doubles as the run grows.
    """

    def __init__(self, capacity: int = 2000) -> None:
        if capacity < 2 or capacity % 2:
            raise ValueError(f"capacity {capacity}: expected an even number, at least 2")
        self._capacity = capacity
        self._points: list[CurvePoint] = []
        self._episodes_per_point = 1
        self._pending: list[float] = []

    def add(self, env_steps: int, seconds: float, episode_return: float) -> None:
        """An episode ended at `env_steps` and `seconds`."""
        self._pending.append(episode_return)
        if len(self._pending) < self._episodes_per_point:
            return
        mean = sum(self._pending) / len(self._pending)
        self._pending.clear()
        self._points.append(CurvePoint(env_steps, seconds, mean))
        if len(self._points) == self._capacity:
            self._merge_pairs()

    def snapshot(self) -> Curve:
        """The curve so far; less than a point's worth of the latest episodes is not in it yet."""
        return Curve(list(self._points), self._episodes_per_point)

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as plain JSON values."""
        return {
            "episodes_per_point": self._episodes_per_point,
            "points": [list(point) for point in self._points],
            "pending": list(self._pending),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`.

        Raises:
            KeyError, TypeError or ValueError: it is not what `state` returned.
        """
        points = [
            CurvePoint(int(steps), float(seconds), float(value))
            for steps, seconds, value in state["points"]
        ]
        self._episodes_per_point = int(state["episodes_per_point"])
        self._pending = [float(value) for value in state["pending"]]
        self._points = points
        while len(self._points) >= self._capacity:
            self._merge_pairs()

    def _merge_pairs(self) -> None:
        self._points = [
            CurvePoint(late.env_steps, late.seconds, (early.mean_return + late.mean_return) / 2)
            for early, late in zip(self._points[::2], self._points[1::2], strict=False)
        ]
        self._episodes_per_point *= 2


def running_mean(values: Iterable[float], window: int) -> list[float]:
    """The mean of each value and up to `window - 1` before it."""
    means: list[float] = []
    total = 0.0
    seen: list[float] = []
    for value in values:
        seen.append(value)
        total += value
        if len(seen) > window:
            total -= seen[-window - 1]
        means.append(total / min(len(seen), window))
    return means
