"""`--record`: every message of every stream goes to a file, and serving never waits for the disk."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, Protocol

import grpc

from learner.serving.recording import (
    SEGMENTS,
    Entry,
    Kind,
    OpenStreams,
    encode_count,
    encode_end,
    entry_bytes,
    is_recording,
    older,
)
from learner.serving.segment_writer import SegmentWriter, entries_bytes
from learner.telemetry.file_lock import lock_file
from learner.telemetry.statistics import Clock
from protos import inference_pb2 as pb
from protos.errors import ConfigError

logger = logging.getLogger(__name__)

MAX_WAITING_BYTES = 64 << 20
"""Most bytes that wait for the disk; what comes beyond is missing in the recording, which says so."""


class StreamRecord(Protocol):
    """Takes what happens on one stream, on the event loop."""

    def received(self, message: pb.ClientMessage) -> None: ...

    def unreadable(self) -> None:
        """Bytes came that are no ClientMessage."""

    def sent(self, message: pb.ServerMessage) -> None:
        """Called before the message leaves: what answers it must come later."""

    def ended(self, status: grpc.StatusCode, details: str) -> None: ...


class Recorder(Protocol):
    """Takes what happens on the streams."""

    def begin(self) -> StreamRecord:
        """A stream has come."""


class NoRecorder:
    """Records nothing; is its own record of each stream."""

    def begin(self) -> StreamRecord:
        return self

    def received(self, message: pb.ClientMessage) -> None: ...

    def unreadable(self) -> None: ...

    def sent(self, message: pb.ServerMessage) -> None: ...

    def ended(self, status: grpc.StatusCode, details: str) -> None: ...


class FileRecorder:
    """Records into FILE, FILE.1, ..., the newest `max_bytes` of what happens.

    The event loop hands entries over; the recorder's own thread writes them. Where the disk is slower
    than the streams, entries are left out, and a GAP tells how many. A disk that is full or fails ends
    the recording with an error in the log, and nothing else.

    `_lock` guards what waits for the thread, its size, and whether it is to end; the event loop alone
    has `_open` and `_missing`, the thread alone the file.

    Args:
        path: FILE. One that is there already becomes FILE.1.
        max_bytes: most bytes of all files together, but that each has its openings and one entry.
        on_failure: hears of a failure that is none of the disk's.
        clock: seconds that never run backwards.
    """

    def __init__(
        self,
        path: Path,
        max_bytes: int,
        *,
        on_failure: Callable[[BaseException], None],
        clock: Clock = time.monotonic,
    ) -> None:
        self._path = path
        self._segment_bytes = max_bytes // SEGMENTS
        self._on_failure = on_failure
        self._clock = clock
        self._open = OpenStreams()
        self._streams = 0
        self._missing = 0
        self._all_missing = 0
        self._recorded = 0
        self._stopped = False
        self._waiting: deque[list[Entry]] = deque()
        self._waiting_bytes = 0
        self._closing = False
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        # Daemon: a thread stuck in a dead disk must not keep an ended process alive.
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._writer = SegmentWriter(path, self._segment_bytes, clock)
        self._held: BinaryIO | None = None

    def start(self) -> None:
        """Make the file, readable by its owner alone, and start the thread. Streams may have begun.

        Raises:
            ConfigError: another learner records there, it cannot be written, or it would take the place
                of a file that is no recording.
        """
        try:
            # Two recorders would move each other's files on, and remove them in the end.
            self._held = lock_file(self._path.with_name(f".{self._path.name}.lock"), self._in_use)
            self._begin()
        except OSError as error:
            self._release()
            raise ConfigError(f"--record {self._path} cannot be written: {error.strerror}") from error
        except ConfigError:
            self._release()
            raise
        logger.info("recording all streams in %s", self._path)
        self._thread.start()

    def _begin(self) -> None:
        for by in range(SEGMENTS):
            path = older(self._path, by)
            if path.exists() and not _is_ours(path):
                raise ConfigError(
                    f"--record {self._path}: expected new files or recordings, found another "
                    f"file, {path}"
                )
        self._writer.begin()

    def _in_use(self, holder: str) -> ConfigError:
        return ConfigError(
            f"--record {self._path} is in use by the learner with process id {holder}: end that one "
            "first, or give this one another file"
        )

    def _release(self) -> None:
        if self._held is not None:
            self._held.close()

    def close(self, timeout_seconds: float = 10.0) -> None:
        """Write what waits, and end the thread. Once the streams are over; idempotent."""
        if not self._thread.is_alive():
            return
        if self._missing:
            self._put([self._gap()])
        with self._lock:
            self._closing = True
            self._news.notify()
        # A failure may close everything from this very thread.
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_seconds)
            if self._thread.is_alive():
                logger.warning("the recorder did not end within %.0f s", timeout_seconds)

    def statistics(self) -> Mapping[str, float]:
        """Entries so far, and what waits for the disk. Any thread may ask."""
        return {
            "count_entries": self._recorded,
            "count_missing": self._all_missing,
            "waiting_bytes": self._waiting_bytes,
            "stopped": int(self._stopped),
        }

    # On the event loop --------------------------------------------------------------------------

    def begin(self) -> StreamRecord:
        self._streams += 1
        record = _FileRecord(self._streams, self._clock, self._add)
        self._add(Entry(Kind.BEGIN, self._clock(), self._streams))
        return record

    def _add(self, entry: Entry) -> None:
        if self._stopped:
            return
        if not self._has_room(entry):
            self._miss()
        elif self._missing:
            self._put([self._gap(), *self._open.continued(entry.seconds), entry])
            self._missing = 0
        else:
            self._put([entry])
        self._open.note(entry)

    def _has_room(self, entry: Entry) -> bool:
        size = entry_bytes(entry.body)
        if size > self._segment_bytes // 2:
            return False
        # Once something is missing, room is made first: holes that are few and long say more.
        limit = MAX_WAITING_BYTES // 2 if self._missing else MAX_WAITING_BYTES
        with self._lock:
            return not self._waiting_bytes or self._waiting_bytes + size <= limit

    def _miss(self) -> None:
        if not self._missing:
            logger.warning(
                "messages are missing in the recording %s: they come faster than it is written, or are "
                "larger than an eighth of --record-max-bytes",
                self._path,
            )
        self._missing += 1
        self._all_missing += 1

    def _gap(self) -> Entry:
        return Entry(Kind.GAP, self._clock(), 0, encode_count(self._missing))

    def _put(self, entries: list[Entry]) -> None:
        self._recorded += 1
        with self._lock:
            self._waiting.append(entries)
            self._waiting_bytes += entries_bytes(entries)
            self._news.notify()

    # In the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while batch := self._take():
                for entries in batch:
                    self._writer.add(entries)
                self._writer.flush()
                with self._lock:
                    self._waiting_bytes -= sum(map(entries_bytes, batch))
        except OSError as error:
            self._stopped = True
            logger.error(
                "%s cannot be written (%s): the recording ends here, serving goes on",
                self._path,
                error.strerror,
            )
        except BaseException as error:  # noqa: BLE001 - whatever it is, the owner hears of it
            self._stopped = True
            self._on_failure(error)
        finally:
            with self._lock:
                self._waiting.clear()
                self._waiting_bytes = 0
            self._writer.close()
            self._release()

    def _take(self) -> list[list[Entry]]:
        """All that waits, which is awaited; nothing at the end."""
        with self._lock:
            while not self._waiting and not self._closing:
                self._news.wait()
            batch = list(self._waiting)
            self._waiting.clear()
            return batch


class _FileRecord:
    """One stream's part."""

    def __init__(self, stream: int, clock: Clock, add: Callable[[Entry], None]) -> None:
        self._stream = stream
        self._clock = clock
        self._add = add

    def received(self, message: pb.ClientMessage) -> None:
        self._note(Kind.RECEIVED, message.SerializeToString())

    def unreadable(self) -> None:
        self._note(Kind.UNREADABLE)

    def sent(self, message: pb.ServerMessage) -> None:
        self._note(Kind.SENT, message.SerializeToString())

    def ended(self, status: grpc.StatusCode, details: str) -> None:
        self._note(Kind.END, encode_end(status.value[0], details))

    def _note(self, kind: Kind, body: bytes = b"") -> None:
        self._add(Entry(kind, self._clock(), self._stream, body))


def _is_ours(path: Path) -> bool:
    """Whether nothing is lost by moving it: a segment, or what a power cut has left of one.

    What is no file is not opened: a pipe would wait for its other end.
    """
    return path.is_file() and (path.stat().st_size == 0 or is_recording(path))
