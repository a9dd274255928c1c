"""Versioned weights: what training has learned, handed to inference between its batches."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from learner.graph import Graph


class PublishedWeights:
    """Copies the trained variables into those that inference acts with, never in the middle of a batch.

    Any number of inference threads read at once; a publication waits for those that read, and later
    readers wait for it. The lock of `_changed` guards `_readers` and `_publishing`, and these two guard
    the acting variables and `_version`: written while `_publishing` with no reader, and held still
    while there are readers. The property `version` alone reads without either: one integer, which may
    be that of a publication under way.

    Who acts with something made of the variables follows them (`follow`) instead, and waits for nobody.

    Args:
        copy: copies the variables.
        version: training version of what they hold now.
    """

    def __init__(self, copy: Callable[[], object], version: int = 0) -> None:
        self._copy = copy
        self._followers: list[Callable[[int], object]] = []
        self._version = version
        self._readers = 0
        self._publishing = False
        self._changed = threading.Condition(threading.Lock())

    @property
    def version(self) -> int:
        """Training version that inference acts with."""
        return self._version

    def follow(self, copied: Callable[[int], object]) -> None:
        """Call this with the version after each publication from now on, in the publisher's thread,
        while others may read. Before there are threads that publish."""
        self._followers.append(copied)

    def __enter__(self) -> int:
        """Hold the weights still, until the end of the context; gives their version."""
        with self._changed:
            while self._publishing:
                self._changed.wait()
            self._readers += 1
            return self._version

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._readers -= 1
            if self._publishing:
                self._changed.notify_all()

    def publish(self, version: int) -> None:
        """Copy the trained weights and call them `version`. One publisher at a time."""
        with self._changed:
            self._publishing = True
            while self._readers:
                self._changed.wait()
        try:
            self._copy()
            self._version = version
        finally:
            with self._changed:
                self._publishing = False
                self._changed.notify_all()
        for copied in self._followers:
            copied(version)


def variable_copier(source: Sequence[Any], target: Sequence[Any]) -> Callable[[], object]:
    """A function that assigns every tf.Variable of `source` to its counterpart, in one graph call."""
    pairs = list(zip(source, target, strict=True))

    def assign() -> dict[str, Any]:
        for trained, acting in pairs:
            acting.assign(trained)
        return {}

    return Graph(assign)
