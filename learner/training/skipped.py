"""Updates that were skipped, because their loss or a gradient was not finite."""

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from learner.experience.trajectory import Batch, Tensor
from learner.telemetry.atomic import replace_file
from protos.errors import TrainingFailure

logger = logging.getLogger(__name__)

SKIPPED = "skipped_updates"
"""Name, among what an update returns, of the count of the updates that were skipped so far; an agent
that skips none need not say so."""


class SkippedUpdates:
    """Watches for a training that comes to nothing: one bad batch is bad luck, a row of them is not.

    `note` and `check_end` are called by the training thread; another may ask `statistics`.

    Args:
        limit: so many updates in a row may be skipped at most.
        path: where the last batch goes then, for a person to look at (.npz).
        before: updates that were skipped before the first one noted; None if it is not known.
    """

    def __init__(self, limit: int, path: Path, *, before: int | None = 0) -> None:
        self._limit = limit
        self._path = path
        self._total = before
        self._updates = 0
        self._skipped = 0
        self._in_a_row = 0
        self._last: Batch

    def note(self, batch: Batch, outputs: Mapping[str, Tensor]) -> None:
        """Take note of an update from `batch`.

        Raises:
            TrainingFailure: too many in a row were skipped; the batch is saved.
        """
        total = int(outputs.get(SKIPPED, 0))
        skipped = self._total is not None and total > self._total
        self._total = total
        self._updates += 1
        self._skipped += skipped
        self._in_a_row = self._in_a_row + 1 if skipped else 0
        if self._in_a_row >= self._limit:
            self._fail(batch)
        if skipped:
            self._last = batch

    def check_end(self) -> None:
        """Judge a training that has ended.

        Raises:
            TrainingFailure: there were updates, and all of them were skipped.
        """
        if 0 < self._updates == self._in_a_row:
            self._fail(self._last)

    def statistics(self) -> Mapping[str, float]:
        """Updates of this process, and how many of them were skipped."""
        return {"updates": self._updates, "skipped": self._skipped}

    def _fail(self, batch: Batch) -> None:
        raise TrainingFailure(
            f"the last {self._in_a_row} updates were skipped: their loss or gradient was not finite"
            f"{self._saved(batch)}. Start anew with a lower --learning-rate or with --clip-gradient-norm"
        )

    def _saved(self, batch: Batch) -> str:
        try:
            with replace_file(self._path) as file:
                np.savez(file, **batch_arrays(batch))  # type: ignore[arg-type]  # the stub takes no **kwargs
        except OSError as error:
            logger.error("%s cannot be written: %s", self._path, error)
            return ""
        return f"; the last one's batch is in {self._path}"


def batch_arrays(batch: Batch) -> dict[str, np.ndarray]:
    """Every array of a batch by a readable name, such as "reward", "observation/0", "record/action"."""
    named: dict[str, np.ndarray] = {}
    for name, value in batch._asdict().items():
        if isinstance(value, tuple):
            named.update((f"{name}/{index}", np.asarray(leaf)) for index, leaf in enumerate(value))
        elif isinstance(value, dict):
            named.update((f"{name}/{key}", np.asarray(entry)) for key, entry in value.items())
        else:
            named[name] = np.asarray(value)
    return named
