"""Threads that act side by side in one process: while the environments of one wait, others step.

Each has its part of the environments, and a session of its own, so that a slow step holds up nobody
else's. It is of use where environments wait for something, such as a device or another process: what
computes in Python would take turns.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from actor.vector import environment_seeds
from protos.errors import ConfigError
from protos.words import text_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Part:
    """The environments of one thread."""

    name: str
    """of its session, and of its thread"""
    num_envs: int
    seed: int
    first: bool
    """whether environment 0 is among them"""


def divided(name: str, num_envs: int, seed: int, num_threads: int) -> list[Part]:
    """`num_envs` environments in `num_threads` parts, whose sizes differ by one at most."""
    if num_threads == 1:
        return [Part(name, num_envs, seed, first=True)]
    size, larger = divmod(num_envs, num_threads)
    return [
        Part(f"{name} thread {index}", size + (index < larger), own_seed, first=index == 0)
        for index, own_seed in enumerate(environment_seeds(seed, num_threads))
    ]


class Making:
    """Parts make their environments one after the other, and act once all are made.

    Modules that are imported, and warnings that are collected, are not for several threads; and what an
    environment forks must inherit no connection, which would outlive this process in it.

    Args:
        num_parts: how many there are.
    """

    def __init__(self, num_parts: int) -> None:
        self.turn = threading.Lock()
        """held while a part makes its environments"""
        self._made = threading.Barrier(num_parts)

    def wait_for_others(self) -> bool:
        """Wait until all parts have made theirs. False if that will not be."""
        with suppress(threading.BrokenBarrierError):
            self._made.wait()
            return True
        return False

    def give_up(self) -> None:
        """Let nobody wait. Not from a handler in a thread that makes: it may hold the barrier's lock."""
        self._made.abort()


def act_side_by_side(
    parts: Sequence[Part], act: Callable[[Part], None], end_others: Callable[[], None]
) -> None:
    """Act for each part in a thread of its own, until all have ended.

    Args:
        parts: what each thread acts for; a single one is acted for in this thread.
        act: acts for a part, to its end.
        end_others: makes every `act` come to its end; called once one of them has failed.

    Raises:
        ConfigError: the system does not start so many threads.
        BaseException: what the first `act` that failed has raised.
    """
    if len(parts) == 1:
        act(parts[0])
        return
    failures: list[BaseException] = []

    def body(part: Part) -> None:
        try:
            act(part)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the owner raises it
            failures.append(error)
            if len(failures) == 1:
                # Now: it is raised once the others have ended, and one of them may hang.
                said = " ".join(text_of(error).split())
                logger.error("%s failed: %s: %s", part.name, type(error).__name__, said)
            end_others()

    threads: list[threading.Thread] = []
    try:
        for part in parts:
            thread = threading.Thread(target=body, args=(part,), name=part.name)
            thread.start()
            threads.append(thread)
    except RuntimeError as error:
        failures.append(
            ConfigError(
                f"--num-threads: expected a number of threads that the system starts, found "
                f"{len(parts)}, of which it started {len(threads)} ({error})"
            )
        )
        end_others()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
