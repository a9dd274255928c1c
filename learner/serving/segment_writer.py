"""The disk's side of a recorder: entries go into segments, the newest of which is written."""

import os
import secrets
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from learner.serving.recording import (
    MAGIC,
    SEGMENTS,
    Entry,
    Kind,
    OpenStreams,
    Segment,
    encode,
    entry_bytes,
    older,
)
from learner.telemetry.atomic import TEMPORARY_SUFFIX
from learner.telemetry.statistics import Clock

WRITE_BYTES = 1 << 20
"""Bytes that are joined for one write: joining many at once would hold up the event loop, since it holds
the interpreter."""


class SegmentWriter:
    """Writes entries into the newest segment, and begins another one when it is full."""

    def __init__(self, path: Path, segment_bytes: int, clock: Clock) -> None:
        self._path = path
        self._segment_bytes = segment_bytes
        self._clock = clock
        self._recording = secrets.token_bytes(16)
        self._number = 0
        self._open = OpenStreams()
        self._file: int | None = None
        self._pieces: list[bytes] = []
        self._unwritten = 0
        self._size = 0
        self._head_size = 0

    def begin(self) -> None:
        """Begin a segment; the others become older by one, and the oldest is removed.

        Raises:
            OSError: it cannot be written.
        """
        self.close()
        # Until its beginning is written it has another name: a disk that is full leaves the former
        # segments as they are, and no file that the next recorder would not know.
        unfinished = self._path.with_name(f".{self._path.name}{TEMPORARY_SUFFIX}")
        unfinished.unlink(missing_ok=True)
        try:
            self._begin(unfinished)
        except OSError:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise
        for by in reversed(range(SEGMENTS - 1)):
            if older(self._path, by).exists():
                older(self._path, by).replace(older(self._path, by + 1))
        unfinished.replace(self._path)

    def _begin(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._size = 0
        segment = Segment(self._recording, self._number, time.time())
        self._number += 1
        now = self._clock()
        self._append(MAGIC)
        self._append(encode(Entry(Kind.SEGMENT, now, 0, segment.encode())))
        for entry in self._open.continued(now):
            self._append(encode(entry))
        self._head_size = self._size
        self.flush()

    def add(self, entries: Sequence[Entry]) -> None:
        """Add entries that belong together into one segment.

        Raises:
            OSError: they cannot be written.
        """
        size = entries_bytes(entries)
        if self._size + size > self._segment_bytes and self._size > self._head_size:
            self.flush()
            self.begin()
        for entry in entries:
            self._append(encode(entry))
            self._open.note(entry)
        if self._unwritten >= WRITE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the operating system, so that a kill of this process loses none of it.

        Raises:
            OSError: it cannot be written.
        """
        data = memoryview(b"".join(self._pieces))
        self._pieces.clear()
        self._unwritten = 0
        assert self._file is not None
        while data:
            data = data[os.write(self._file, data) :]

    def close(self) -> None:
        """Idempotent. What was not flushed is lost."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._pieces.clear()

    def _append(self, data: bytes) -> None:
        self._pieces.append(data)
        self._unwritten += len(data)
        self._size += len(data)


def entries_bytes(entries: Iterable[Entry]) -> int:
    """How many bytes they take in a segment."""
    return sum(entry_bytes(entry.body) for entry in entries)
