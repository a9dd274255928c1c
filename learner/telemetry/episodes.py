"""Counts environment steps and episodes as they pass through inference; the source of every return."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from learner.flags import LAST, RESET
from learner.telemetry.learning_curve import Curve, LearningCurve
from learner.telemetry.statistics import Clock, Histogram, Spread
from protos import inference_pb2 as pb
from protos.errors import CheckpointError

_MAGNITUDES = [digit * 10.0**power for power in range(-1, 6) for digit in (1, 2, 5)]
_RETURNS = [*(-bound for bound in reversed(_MAGNITUDES)), 0.0, *_MAGNITUDES]
_LENGTHS = [digit * 10**power for power in range(6) for digit in (1, 2, 5)]

WINDOW = 100
"""Episodes that "mean return" means, as in the field's own benchmarks."""


class Episode(NamedTuple):
    """One finished training episode, seen from its first row."""

    slot: int
    episode_return: float
    """sum of the unclipped rewards"""
    length: int
    """environment steps"""
    env_steps: int
    """steps of the whole run when it ended"""
    seconds: float
    """seconds of training when it ended"""


class EpisodeTracker:
    """What the environments earn, by slot.

    Who infers calls `observe`; anyone may read. An episode counts if it was seen from its first
    row: one that a former lease left unfinished would report a part of its return as the whole.
    Environment steps are counted in any case, since they were executed.

    Seconds run from the construction, plus those of the runs that this one resumes. `_lock` guards
    every field.
    """

    def __init__(
        self,
        num_slots: int,
        *,
        stop_return: float | None = None,
        clock: Clock = time.monotonic,
        on_episode: Callable[[Episode], None] | None = None,
    ) -> None:
        self._returns = np.zeros(num_slots, np.float64)
        self._lengths = np.zeros(num_slots, np.int64)
        self._tracked = np.zeros(num_slots, np.bool_)
        self._stop_return = stop_return
        self._clock = clock
        self._started = clock()
        self._on_episode = on_episode
        self._own_steps = 0
        self._others_steps = 0
        self._episodes = 0
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._recent_lengths: deque[int] = deque(maxlen=WINDOW)
        self._curve = LearningCurve()
        self._solved: tuple[int, float] | None = None
        self._restored = (0, 0)
        self._all_returns = Histogram(_RETURNS)
        self._all_lengths = Histogram(_LENGTHS)
        self._lock = threading.Lock()

    def observe(self, slots: np.ndarray, reward: np.ndarray, flags: np.ndarray) -> None:
        """Take in n rows of distinct slots, before they are answered: that keeps a slot's rows in order.

        Args:
            slots: integers [n]; of np.intp they cost NumPy no conversion.
            reward: float32 [n], unclipped, of the transition that led to the row.
            flags: uint8 [n], StepFlag bits of the wire, and LEASE_START: whatever the slot did before
                such a row is another's.
        """
        ended: list[Episode] = []
        with self._lock:
            self._own_steps += len(slots)
            self._returns[slots] += reward
            self._lengths[slots] += 1
            if np.count_nonzero(flags):
                begins = (flags & RESET) != 0
                self._begin(slots[begins], (flags[begins] & pb.FIRST) != 0)
                ended = self._finish(slots[(flags & LAST) != 0])
        # Outside the lock: the callback may read this tracker.
        if self._on_episode is not None:
            for episode in ended:
                self._on_episode(episode)

    @property
    def env_steps(self) -> int:
        """Executed environment steps of the run, over all resumptions."""
        with self._lock:
            return self._env_steps()

    @property
    def own_env_steps(self) -> int:
        """Those of them that were counted here, or restored."""
        with self._lock:
            return self._own_steps

    def note_others(self, env_steps: int) -> None:
        """Other learners of the run have counted so many steps."""
        with self._lock:
            self._others_steps = env_steps

    @property
    def episodes(self) -> int:
        """Episodes that counted, over all resumptions."""
        with self._lock:
            return self._episodes

    @property
    def solved_env_steps(self) -> int | None:
        """Steps when the mean of 100 episodes first reached `stop_return`; None if it has not."""
        with self._lock:
            return None if self._solved is None else self._solved[0]

    @property
    def solved_seconds(self) -> float | None:
        """Seconds when the mean of 100 episodes first reached `stop_return`; None if it has not."""
        with self._lock:
            return None if self._solved is None else self._solved[1]

    def seconds(self) -> float:
        """Seconds of training, over all resumptions."""
        return self._clock() - self._started

    def mean_return(self) -> float | None:
        """Mean of the last 100 episodes, or of as many as there are; None if none."""
        with self._lock:
            return _mean(self._recent)

    def curve(self) -> Curve:
        """The learning curve so far."""
        with self._lock:
            return self._curve.snapshot()

    def statistics(self) -> Mapping[str, float]:
        with self._lock:
            numbers: dict[str, float] = {
                "steps": self._env_steps(),
                "finished": self._episodes,
                "steps_since_start": self._own_steps - self._restored[0],
                "finished_since_start": self._episodes - self._restored[1],
            }
            if self._recent:
                numbers["mean_length_100"] = _mean(self._recent_lengths) or 0.0
                numbers["min_return_100"] = min(self._recent)
                numbers["max_return_100"] = max(self._recent)
            return numbers

    def spreads(self) -> Mapping[str, Spread]:
        """How the episodes of this process are spread: their returns, and their environment steps."""
        with self._lock:
            return {"returns": self._all_returns.spread(), "lengths": self._all_lengths.spread()}

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as plain JSON values. Unfinished episodes are not in it."""
        with self._lock:
            return {
                "env_steps": self._env_steps(),
                "episodes": self._episodes,
                "seconds": self._clock() - self._started,
                "recent_returns": list(self._recent),
                "recent_lengths": list(self._recent_lengths),
                "curve": self._curve.state(),
                "stop_return": self._stop_return,
                "solved": None if self._solved is None else list(self._solved),
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`. When the threshold was met is kept only if it is the same threshold.

        Raises:
            CheckpointError: it is not what `state` returned.
        """
        with self._lock:
            try:
                self._restore(state)
            except (KeyError, TypeError, ValueError) as error:
                raise CheckpointError(
                    f"the checkpoint's count of episodes is incomplete: {type(error).__name__}: {error}"
                ) from error

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._own_steps = int(state["env_steps"])
        self._episodes = int(state["episodes"])
        self._restored = (self._own_steps, self._episodes)
        self._started = self._clock() - float(state["seconds"])
        self._recent = deque((float(value) for value in state["recent_returns"]), WINDOW)
        self._recent_lengths = deque((int(value) for value in state["recent_lengths"]), WINDOW)
        self._curve.restore(state["curve"])
        solved = state["solved"] if state["stop_return"] == self._stop_return else None
        self._solved = None if solved is None else (int(solved[0]), float(solved[1]))

    def _begin(self, slots: np.ndarray, tracked: np.ndarray) -> None:
        self._own_steps -= len(slots)  # no step led to these rows
        self._returns[slots] = 0
        self._lengths[slots] = 0
        self._tracked[slots] = tracked

    def _finish(self, slots: np.ndarray) -> list[Episode]:
        seconds = self._clock() - self._started
        finished = []
        whole = slots[self._tracked[slots]]
        self._tracked[slots] = False
        for slot in whole.tolist():
            episode = Episode(
                slot,
                float(self._returns[slot]),
                int(self._lengths[slot]),
                self._env_steps(),
                seconds,
            )
            self._episodes += 1
            self._recent.append(episode.episode_return)
            self._recent_lengths.append(episode.length)
            self._all_returns.add(episode.episode_return)
            self._all_lengths.add(episode.length)
            self._curve.add(self._env_steps(), seconds, episode.episode_return)
            self._check_solved(seconds)
            finished.append(episode)
        return finished

    def _check_solved(self, seconds: float) -> None:
        if self._stop_return is None or self._solved is not None or len(self._recent) < WINDOW:
            return
        if sum(self._recent) / WINDOW >= self._stop_return:
            self._solved = (self._env_steps(), seconds)

    def _env_steps(self) -> int:
        return self._own_steps + self._others_steps


def _mean(values: deque[float] | deque[int]) -> float | None:
    return sum(values) / len(values) if values else None
