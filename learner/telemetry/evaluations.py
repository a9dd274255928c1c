"""Rounds of evaluation episodes, each played with the weights of one moment of training."""

import statistics
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from learner.flags import LeaseEnd
from learner.telemetry.episodes import Episode
from protos import inference_pb2 as pb
from protos.errors import CheckpointError


class Evaluation(NamedTuple):
    """One round's result."""

    env_steps: int
    """training steps of the run when the weights were taken"""
    seconds: float
    """seconds of training at that moment"""
    version: int
    """training version of the weights"""
    episodes: int
    mean_return: float
    """mean of the unclipped returns"""
    std_return: float
    min_return: float
    max_return: float


class Evaluations:
    """Opens and closes the evaluation lane, and counts what is played while it is open.

    It is the lane's experience: between rounds `wait_for_room` holds its actors back. An episode
    counts if it began in the round, and each environment has the same number of them to play: the
    first to come would be the short ones.

    The training thread begins rounds, who infers for the lane plays them. `_lock` guards every
    field.
    """

    def __init__(self, num_slots: int, episodes: int) -> None:
        self._episodes = episodes
        self._round = 0
        self._began = np.full(num_slots, -1, np.int64)
        """round in which a slot's episode began"""
        self._moment: tuple[int, float, int] | None = None
        self._share: dict[int, int] = {}
        """episodes that a slot has to play in the round"""
        self._even, self._extra = 0, 0
        self._anyone = False
        self._counted: Counter[int] = Counter()
        self._played: list[Episode] = []
        self._finished: list[Evaluation] = []
        self._closed = False
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    # The training thread ------------------------------------------------------------------------

    def begin(self, env_steps: int, seconds: float, version: int, environments: int) -> None:
        """Open the lane for one round, for as many environments as there are now.

        Raises:
            ValueError: a round is under way, or there is no environment to play it.
        """
        if environments < 1:
            raise ValueError("expected at least one environment, found none")
        with self._lock:
            if self._moment is not None:
                raise ValueError(f"expected no round under way, found round {self._round}")
            self._round += 1
            self._moment = (env_steps, seconds, version)
            self._even, self._extra = divmod(self._episodes, environments)
            self._share.clear()
            self._anyone = False
            self._counted.clear()
            self._played.clear()
            self._changed.notify_all()

    @property
    def under_way(self) -> bool:
        """Whether a round has begun and not ended."""
        with self._lock:
            return self._moment is not None

    def wait_for_end(self, timeout_seconds: float | None = None) -> bool:
        """Block until no round is under way, or `close`. False if one still is after that time."""
        with self._lock:
            return self._changed.wait_for(lambda: self._moment is None or self._closed, timeout_seconds)

    def close(self) -> None:
        """End the lane's waiting; a round under way has no result. Idempotent."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    # The lane's inference ----------------------------------------------------------------

    def wait_for_room(self) -> bool:
        """Block between rounds. False if there are no more."""
        with self._lock:
            self._changed.wait_for(lambda: self._closed or self._moment is not None)
            return not self._closed

    def has_room(self) -> bool:
        """Whether a round is under way, and will have an end. Never blocks."""
        with self._lock:
            return self._moment is not None and not self._closed

    def append(self, steps: Any) -> None:
        """Note which episodes begin. `steps` is `learner.experience.unrolls.Steps`."""
        first = steps.slots[(steps.flags & pb.FIRST) != 0]
        if first.size:
            with self._lock:
                self._began[first] = self._round
                for slot in first.tolist():
                    extra = len(self._share) < self._extra
                    self._share.setdefault(slot, self._even + extra)

    def drop(self, slots: np.ndarray, reason: LeaseEnd) -> None:
        """The leases of these slots are over, and with them their episodes."""
        with self._lock:
            self._began[slots] = -1
            # Whoever is left plays what these still owe: the round would have no end otherwise.
            self._anyone = True

    def add(self, episode: Episode) -> None:
        """An episode has ended: the tracker's callback."""
        with self._lock:
            slot = episode.slot
            if self._moment is None or self._began[slot] != self._round:
                return
            if self._anyone or self._counted[slot] < self._share[slot]:
                self._counted[slot] += 1
                self._played.append(episode)
            if len(self._played) == self._episodes:
                returns = [each.episode_return for each in self._played]
                self._finished.append(_evaluation(*self._moment, returns))
                self._moment = None
                self._changed.notify_all()

    # Results ------------------------------------------------------------------------------------

    def results(self) -> list[Evaluation]:
        """All results so far, oldest first."""
        with self._lock:
            return list(self._finished)

    def played(self) -> list[Episode]:
        """The episodes of the last round, or of the one under way."""
        with self._lock:
            return list(self._played)

    def best(self) -> Evaluation | None:
        """The first of those with the highest mean return; None if there is no result."""
        results = self.results()
        return max(results, key=lambda result: result.mean_return) if results else None

    def statistics(self) -> Mapping[str, float]:
        with self._lock:
            numbers: dict[str, float] = {
                "rounds": len(self._finished),
                "episodes_played": len(self._played) if self._moment is not None else 0,
            }
            if self._finished:
                last = self._finished[-1]
                numbers |= {
                    "mean_return": last.mean_return,
                    "min_return": last.min_return,
                    "max_return": last.max_return,
                    "env_steps": last.env_steps,
                    "policy_version": last.version,
                }
            return numbers

    def state(self) -> list[list[float]]:
        """What `restore` needs, as plain JSON values. A round under way is not in it."""
        return [list(result) for result in self.results()]

    def restore(self, state: Any) -> None:
        """Go on from `state`.

        Raises:
            CheckpointError: it is not what `state` returned.
        """
        try:
            results = [
                Evaluation(int(steps), float(seconds), int(version), int(episodes), *map(float, rest))
                for steps, seconds, version, episodes, *rest in state
            ]
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                f"the checkpoint's evaluations are incomplete: {type(error).__name__}: {error}"
            ) from error
        with self._lock:
            self._finished = results


def _evaluation(env_steps: int, seconds: float, version: int, returns: list[float]) -> Evaluation:
    return Evaluation(
        env_steps,
        seconds,
        version,
        len(returns),
        statistics.fmean(returns),
        statistics.pstdev(returns),
        min(returns),
        max(returns),
    )
