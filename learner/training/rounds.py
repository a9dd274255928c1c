"""Learners in step: each update is made by all of a group, or by none."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from learner.experience.prefetch import Prepared
from learner.group import Group


class Rounds:
    """Iterates over this learner's batches, one a round; a round begins when every learner has its own.

    A learner whose actors are slow holds back the others: that is data parallelism. In each round they
    tell each other how many steps they have made, and whether one has reached the run's end or is to
    end: then all end with this round, before anyone waits in an update that another never makes.

    Iterated over by the training thread; others may read the fields.

    Args:
        batches: of this learner.
        group: all learners.
        env_steps: environment steps of this learner's own actors.
        reached: whether this learner has seen the run's goal met.
        total_steps: environment steps of the whole group after which the run ends.
        before: steps that the run has made beside those that the learners count.
    """

    def __init__(
        self,
        batches: Iterable[Prepared],
        group: Group,
        *,
        env_steps: Callable[[], int],
        reached: Callable[[], bool],
        total_steps: int,
        before: int = 0,
    ) -> None:
        self._batches = batches
        self._group = group
        self._own_steps = env_steps
        self._reached = reached
        self._total_steps = total_steps
        self._before = before
        self.env_steps = before
        """of the whole group, as of the last round"""
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
        return {"learners": self._group.size, "env_steps": self.env_steps}

    def _ends(self, *, ending: bool) -> bool:
        """Hold a round."""
        ended = np.zeros(self._group.size, np.int64)
        ended[self._group.index] = ending
        said = np.array([self._own_steps(), self._reached(), *ended], np.int64)
        steps, reached, *ended_by = self._group.sum(said).tolist()
        self.env_steps = self._before + steps
        self.finished = bool(reached) or self.env_steps >= self._total_steps
        if any(ended_by):
            self.ended_by = ended_by.index(1)
        return self.finished or self.ended_by is not None
