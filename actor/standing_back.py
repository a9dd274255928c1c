"""Who goes first where cores are short: not this process."""

import os
from contextlib import suppress


def stand_back(niceness: int) -> None:
    """Let others go first from now on, with all threads and processes that are started later.

    Linux also has batch processes, which take no core from who runs when they are woken: else an answer
    that wakes an actor would take it from the learner, which has others to answer.

    Args:
        niceness: how far, 1 to 19; 0 for not at all, and nothing else is changed.
    """
    if not niceness:
        return
    os.nice(niceness)
    if hasattr(os, "SCHED_BATCH"):  # Not every system can.
        # Nor may it in every sandbox: it is no more than a wish.
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
