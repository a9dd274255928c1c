"""How a client waits between attempts to reach the learner."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RetryPolicy:
    """Exponential backoff with full jitter, and when to give up.

    The delay after attempt n, counted from 0, is drawn evenly from 0 to `initial_seconds * 2**n`, at
    most `max_seconds`; so a thousand actors that lost their learner together do not return together.
    """

    initial_seconds: float = 0.1
    max_seconds: float = 5.0
    give_up_seconds: float | None = None
    """After so long without the learner, its error is raised; None waits for ever."""
    give_up_when: Callable[[], bool] = lambda: False
    """Asked after every attempt that failed: whether there is nothing left to wait for."""
    clock: Callable[[], float] = time.monotonic
    random: Callable[[], float] = field(default_factory=lambda: random.Random().random)

    def attempts(self, sleep: Callable[[float], object]) -> Iterator[int]:
        """Numbers of attempts, with `sleep` called between them; ends when it is time to give up."""
        began = self.clock()
        attempt = 0
        while True:
            yield attempt
            if self.give_up_when():
                return
            delay = self.random() * min(self.max_seconds, self.initial_seconds * 2**attempt)
            if self.give_up_seconds is not None and self.clock() + delay - began > self.give_up_seconds:
                return
            sleep(delay)
            # Further doubling would change nothing but overflow.
            attempt = min(attempt + 1, 30)
