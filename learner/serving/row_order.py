"""Which row each environment of a session may send next. No I/O, no locks."""

import numpy as np

from learner.flags import ALL_WIRE_FLAGS, LAST, LEASE_START
from protos import inference_pb2 as pb
from protos.errors import InvalidRequest

NEW, IN_EPISODE, BETWEEN_EPISODES, BUSY = 0, 1, 2, 4
"""Phases of an environment; BUSY, beside them, while its last row waits for an answer."""

Rows = np.ndarray | slice
"""Indices of a message's environments; a slice where they are all of them in order, for which NumPy
makes no copies."""


def _allowed() -> np.ndarray:
    """bool [phase, flags]: whether a row with these flags may come in this phase."""
    allowed = np.zeros((2 * BUSY, ALL_WIRE_FLAGS + 1), bool)
    for flags in range(ALL_WIRE_FLAGS + 1):
        first, last = bool(flags & pb.FIRST), bool(flags & LAST)
        allowed[NEW, flags] = not (first and last)
        allowed[IN_EPISODE, flags] = not first
        allowed[BETWEEN_EPISODES, flags] = first and not last
    return allowed.reshape(-1)


_ALLOWED = _allowed()
_NEXT_PHASE = np.array(
    [BETWEEN_EPISODES if flags & LAST else IN_EPISODE for flags in range(ALL_WIRE_FLAGS + 1)], np.uint8
)


class RowOrder:
    """Episodes begin and end in order, and each environment waits for the answer to its last row.

    Most messages bring one row of every environment in the middle of its episode. For them one flag says
    what `_phase` says of each: `_steady` that all are in an episode and none waits, `_steady_busy` that
    all are and all wait, in which case their BUSY is not in `_phase`.
    """

    def __init__(self, environments: int) -> None:
        self._phase = np.zeros(environments, np.uint8)
        self._steady = False
        self._steady_busy = False

    def check(self, rows: Rows, reward: np.ndarray, flags: np.ndarray) -> None:
        """Check one row of each of some environments.

        Args:
            rows: the environments, each once and in range.
            reward: float32 [n].
            flags: uint8 [n].

        Raises:
            InvalidRequest: naming an environment and what is wrong with its row.
        """
        finite = np.count_nonzero(np.isfinite(reward)) == len(reward)
        some = np.count_nonzero(flags)
        if self._steady and finite and not some:
            return
        self._write_busy()
        phase = self._phase[rows]
        # One look at all rows; only where something is wrong, what.
        if not finite or flags.max() > ALL_WIRE_FLAGS or not _ALLOWED.take((phase << 3) | flags).all():
            self._refuse(rows, phase, reward, flags)
        if some and reward[(flags & pb.FIRST) != 0].any():
            self._refuse(rows, phase, reward, flags)

    def take_in(self, rows: Rows, flags: np.ndarray) -> np.ndarray:
        """These rows, which were checked, wait for their answers from now on.

        Returns:
            Their flags, uint8 [n], with LEASE_START in the first ever of an environment.
        """
        if self._steady:
            self._steady = False
            if isinstance(rows, slice) and not np.count_nonzero(flags):
                self._steady_busy = True
                return flags
        new = self._phase[rows] == NEW
        self._phase[rows] = _NEXT_PHASE.take(flags) | BUSY
        return np.where(new, flags | LEASE_START, flags) if new.any() else flags

    def answered(self, rows: Rows) -> None:
        """The rows of these environments have been answered."""
        if self._steady_busy:
            self._steady_busy, self._steady = False, True
            return
        self._phase[rows] &= ~np.uint8(BUSY)
        self._steady = bool((self._phase == IN_EPISODE).all())

    def _write_busy(self) -> None:
        if self._steady_busy:
            self._steady_busy = False
            self._phase |= np.uint8(BUSY)

    def _refuse(self, rows: Rows, phase: np.ndarray, reward: np.ndarray, flags: np.ndarray) -> None:
        first, last = (flags & pb.FIRST) != 0, (flags & LAST) != 0
        within = phase & ~np.uint8(BUSY)
        faults = (
            (~np.isfinite(reward), "a finite reward", "NaN or infinity"),
            (flags > ALL_WIRE_FLAGS, f"flags of at most {ALL_WIRE_FLAGS}", "others"),
            (first & last, "FIRST or the end of an episode", "both in one row"),
            (first & (reward != 0), "reward 0 in a FIRST row", "another"),
            (
                (within == BETWEEN_EPISODES) & ~first,
                "FIRST after the end of an episode",
                "a row without it",
            ),
            (
                (within == IN_EPISODE) & first,
                "TERMINATED or TRUNCATED before the next FIRST",
                "FIRST in the middle of an episode",
            ),
            ((phase & BUSY) != 0, "to wait for the answer to its last step", "another step"),
        )
        environments = np.arange(len(self._phase))[rows]
        for wrong, expected, found in faults:
            if wrong.any():
                environment = environments[np.flatnonzero(wrong)[0]]
                raise InvalidRequest(f"environment {environment}: expected {expected}, found {found}")
