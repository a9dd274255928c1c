"""How fast one stream may send."""

import time

from learner.telemetry.statistics import Clock


class Pace:
    """Counts a stream's messages, and says how long to leave the next one unread.

    A client that is held back so fills its own connection's window, and nobody else's.

    Args:
        rate: most messages a second; 0 for any number.
        clock: seconds that never run backwards.
    """

    def __init__(self, rate: int, clock: Clock = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._since = clock()
        self._count = 0

    def too_early(self) -> float:
        """Count a message; seconds to wait before the next one is read."""
        self._count += 1
        # The clock is read once in so many messages.
        if not self._rate or self._count < self._rate:
            return 0.0
        now = self._clock()
        wait = max(self._since + 1.0 - now, 0.0)
        self._since, self._count = now + wait, 0
        return wait
