"""Learners in step: each update is made by all of a group, or by none."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from learner.experience.prefetch import Prepared
from learner.group import Group
from learner.telemetry.episodes import EpisodeTracker


class Rounds:
    """Iterates over this learner's batches, one a round; a round begins when every learner has its own.

    A learner whose actors are slow holds back the others: that is data parallelism. In each round they
    tell each other how many steps they have made, and whether one has reached the run's end or is to
    end: then all end with this round, before anyone waits in an update that another never makes.

    Iterated over by the training thread; others may read the fields.

    Args:
        batches: of this learner.
        group: all learners.
        episodes: of this learner; hears of the others' environment steps.
        reached: whether this learner has seen the run's goal met.
        total_steps: environment steps of all learners together after which the run ends.
    """

    def __init__(
        self,
        batches: Iterable[Prepared],
        group: Group,
        *,
        episodes: EpisodeTracker,
        reached: Callable[[], bool],
        total_steps: int,
    ) -> None:
        self._batches = batches
        self._group = group
        self._episodes = episodes
        self._reached = reached
        self._total_steps = total_steps
        self.env_steps = episodes.env_steps
        """of all learners together, as of the last round: the same number in each, of which what all do
        alike has to be made"""
        self.finished = False
        """whether the run has reached its end"""
        self.ended_by: int | None = None
        """index of a learner that was to end before that; None while none is"""

    def __iter__(self) -> Iterator[Prepared]:
        for prepared in self._batches:
            if self._ends(ending=False):
                return
            yield prepared
        self._ends(ending=True)

    def statistics(self) -> Mapping[str, float]:
        return {"learners": self._group.size, "index": self._group.index}

    def _ends(self, *, ending: bool) -> bool:
        """Hold a round."""
        ended = np.zeros(self._group.size, np.int64)
        ended[self._group.index] = ending
        own = self._episodes.own_env_steps
        steps, reached, *ended_by = self._group.sum(np.array([own, self._reached(), *ended])).tolist()
        self._episodes.note_others(steps - own)
        self.env_steps = steps
        self.finished = reached > 0 or steps >= self._total_steps
        if any(ended_by):
            self.ended_by = ended_by.index(1)
        return self.finished or self.ended_by is not None
