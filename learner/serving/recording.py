"""The format of a recording: what `--record` writes and `seedbed replay` reads.

What decodes a body raises ValueError where it cannot.

A recording is a row of files, its segments: FILE is the newest, FILE.1 the one before it, and so on.
Each begins with `MAGIC`, which has the format's version; then come entries. An entry is, little-endian,

    uint32   number of bytes from `kind` on
    uint32   CRC-32 of those bytes
    uint8    kind, see `Kind`
    float64  when, in seconds of the learner's monotonic clock
    uint64   stream, from 1 on; 0 where the entry is of none
    body     the rest, see `Kind`

The first entry of a segment is SEGMENT. After it, and after a GAP, comes one CONTINUED for each stream
that is open then, so that what a stream is remains known when the older segments are gone.

Tokens of sessions stand in it, so that the files are for their owner's eyes only.
"""

import re
import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from protos.errors import ConfigError

MAGIC = b"seedbed recording 1\n"

SEGMENTS = 4
"""Files that a recording is kept in, at most."""

MAX_ENTRY_BYTES = 1 << 30
"""More than any entry has: a length beyond this is damage, and is not read into memory."""


class Kind(IntEnum):
    """What an entry tells, and what its body is."""

    SEGMENT = 0
    """a file begins: 16 bytes that name the recording, uint64 number of the segment from 0 on, float64
    seconds since 1970"""
    BEGIN = 1
    """a stream has come: nothing"""
    CONTINUED = 2
    """a stream goes on: uint32 n, n bytes of the ClientMessage that opened it, and the ServerMessage
    that answered; both may be empty"""
    RECEIVED = 3
    """a ClientMessage"""
    UNREADABLE = 4
    """bytes came that are no ClientMessage: nothing"""
    SENT = 5
    """a ServerMessage"""
    END = 6
    """a stream is over: uint8 gRPC status, and its details in UTF-8"""
    GAP = 7
    """so many entries are missing here: uint64"""


class Entry(NamedTuple):
    """One thing that happened."""

    kind: Kind
    seconds: float
    """of the monotonic clock"""
    stream: int
    """which it happened to; 0 for none"""
    body: bytes = b""


_LENGTH_AND_CRC = struct.Struct("<II")
_HEAD = struct.Struct("<BdQ")
_SEGMENT = struct.Struct("<16sQd")
_COUNT = struct.Struct("<Q")
_LENGTH = struct.Struct("<I")


def encode(entry: Entry) -> bytes:
    """The bytes of `entry` in a segment."""
    payload = _HEAD.pack(entry.kind, entry.seconds, entry.stream) + entry.body
    return _LENGTH_AND_CRC.pack(len(payload), zlib.crc32(payload)) + payload


def entry_bytes(body: bytes) -> int:
    """How many bytes an entry with this body takes in a segment."""
    return _LENGTH_AND_CRC.size + _HEAD.size + len(body)


class Segment(NamedTuple):
    """The body of SEGMENT."""

    recording: bytes
    """16 bytes, the same in all segments of a recording"""
    number: int
    wall_seconds: float
    """since 1970, when the segment began"""

    def encode(self) -> bytes:
        return _SEGMENT.pack(*self)

    @classmethod
    def decode(cls, body: bytes) -> "Segment":
        return cls(*_unpack(_SEGMENT, body))


class Opening(NamedTuple):
    """How a stream began: the body of CONTINUED."""

    received: bytes = b""
    """its first ClientMessage, empty if there was none yet"""
    sent: bytes = b""
    """its first ServerMessage, empty if there was none yet"""

    def encode(self) -> bytes:
        return _LENGTH.pack(len(self.received)) + self.received + self.sent

    @classmethod
    def decode(cls, body: bytes) -> "Opening":
        (length,) = _unpack(_LENGTH, body[: _LENGTH.size])
        received = body[_LENGTH.size :]
        if length > len(received):
            raise ValueError(f"an opening of {length} bytes in {len(received)}")
        return cls(received[:length], received[length:])


class OpenStreams:
    """How each stream that is open began, after the entries so far."""

    def __init__(self) -> None:
        self._openings: dict[int, Opening] = {}

    def note(self, entry: Entry) -> None:
        """An entry has happened."""
        stream = entry.stream
        match entry.kind:
            case Kind.GAP:
                self._openings.clear()
            case Kind.CONTINUED:
                self._openings[stream] = Opening.decode(entry.body)
            case Kind.BEGIN:
                self._openings[stream] = Opening()
            case Kind.RECEIVED if not self._openings[stream].received:
                self._openings[stream] = Opening(received=entry.body)
            case Kind.SENT if not self._openings[stream].sent:
                self._openings[stream] = self._openings[stream]._replace(sent=entry.body)
            case Kind.END:
                del self._openings[stream]

    def continued(self, seconds: float) -> list[Entry]:
        """The CONTINUED of each stream."""
        return [
            Entry(Kind.CONTINUED, seconds, stream, opening.encode())
            for stream, opening in self._openings.items()
        ]


def encode_end(code: int, details: str) -> bytes:
    """The body of END."""
    return bytes([code]) + details.encode()


def decode_end(body: bytes) -> tuple[int, str]:
    """Status and details of an END."""
    if not body:
        raise ValueError("an end without a status")
    return body[0], body[1:].decode()


def encode_count(missing: int) -> bytes:
    """The body of GAP."""
    return _COUNT.pack(missing)


def decode_count(body: bytes) -> int:
    """How many entries are missing at a GAP."""
    count: int = _unpack(_COUNT, body)[0]
    return count


def _unpack(form: struct.Struct, body: bytes) -> tuple[Any, ...]:
    if len(body) != form.size:
        raise ValueError(f"{len(body)} bytes where {form.size} were to be")
    return form.unpack(body)


# Files ------------------------------------------------------------------------------------------


def older(path: Path, by: int) -> Path:
    """The file of the segment that is `by` segments older than that in `path`."""
    found = re.fullmatch(r"(.*)\.([1-9]\d*)", path.name)
    base, number = (found[1], int(found[2])) if found else (path.name, 0)
    number += by
    return path.with_name(f"{base}.{number}" if number else base)


def is_recording(path: Path) -> bool:
    """Whether the file begins as a segment does.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


class Recording:
    """Iterates over what happened, oldest first, across the segments that are there.

    What is missing, whatever the reason, is told by a GAP: the streams that were open go on in the
    CONTINUED that follow it. Without a GAP, segments meet without a seam.

    Args:
        path: the newest segment to read. Older ones of the same recording are read before it.

    Raises:
        ConfigError: there is no file, or it is no recording.
    """

    def __init__(self, path: Path) -> None:
        self.gaps = 0
        """Places where entries are missing, found by the last iteration."""
        self.missing = 0
        """Entries that the recorder counted as missing there; those of a lost or damaged segment
        are not known."""
        self.damage: list[str] = []
        """What was wrong with the files, found by the last iteration."""
        self._segments = _segments(path)
        self._whole = True
        self._at = (path, 0)

    def __iter__(self) -> Iterator[Entry]:
        self.gaps, self.missing, self.damage = 0, 0, []
        before: Segment | None = None
        for path, segment in self._segments:
            seamless = before is not None and self._whole and segment.number == before.number + 1
            for entry in self._entries(path):
                if entry.kind is Kind.SEGMENT:
                    if before is not None and not seamless:
                        yield self._gap(Entry(Kind.GAP, entry.seconds, 0, encode_count(0)))
                elif entry.kind is Kind.GAP:
                    seamless = False
                    yield self._gap(entry)
                elif entry.kind is not Kind.CONTINUED or not seamless:
                    yield entry
            before = segment

    def refusal(self, found: str) -> ConfigError:
        """What to raise where the entry that came last is not what it should be."""
        path, at = self._at
        return ConfigError(
            f"--file {path}: expected entries as --record writes them, found {found}, at byte {at}"
        )

    def _gap(self, entry: Entry) -> Entry:
        self.gaps += 1
        try:
            self.missing += decode_count(entry.body)
        except ValueError as error:
            raise self.refusal(str(error)) from None
        return entry

    def _entries(self, path: Path) -> Iterator[Entry]:
        self._whole = False
        with path.open("rb") as file:
            file.seek(len(MAGIC))
            while True:
                at = file.tell()
                try:
                    entry = _read(file)
                except _TruncatedError:
                    self.damage.append(f"{path} ends in the middle of an entry, at byte {at}")
                    return
                except ValueError as error:
                    self.damage.append(f"{path} is damaged from byte {at} on: {error}")
                    return
                if entry is None:
                    self._whole = True
                    return
                self._at = (path, at)
                yield entry


class _TruncatedError(Exception):
    """The file ends before the entry does."""


def _read(file: BinaryIO) -> Entry | None:
    """The next entry; None at the file's end.

    Raises:
        _TruncatedError: the file ends in the middle of it, as after kill -9 or a power cut.
        ValueError: it is damaged.
    """
    head = file.read(_LENGTH_AND_CRC.size)
    if not head:
        return None
    if len(head) < _LENGTH_AND_CRC.size:
        raise _TruncatedError
    length, checksum = _LENGTH_AND_CRC.unpack(head)
    if not _HEAD.size <= length <= MAX_ENTRY_BYTES:
        raise ValueError(f"an entry of {length} bytes")
    payload = file.read(length)
    if len(payload) < length:
        raise _TruncatedError
    if zlib.crc32(payload) != checksum:
        raise ValueError("a checksum does not match")
    kind, seconds, stream = _HEAD.unpack_from(payload)
    return Entry(Kind(kind), seconds, stream, payload[_HEAD.size :])


def _segments(newest: Path) -> list[tuple[Path, Segment]]:
    """The segments of the recording that `newest` belongs to, oldest first."""
    found: list[tuple[Path, Segment]] = []
    for by in range(SEGMENTS):
        path = older(newest, by)
        try:
            segment = _first_entry(path)
        except OSError as error:
            if by == 0:
                raise ConfigError(f"--file {path} cannot be read: {error.strerror}") from error
            break
        except ValueError as error:
            if by == 0:
                raise ConfigError(
                    f"--file {path}: expected a file that --record wrote, found {error}"
                ) from error
            break
        if found and segment.recording != found[0][1].recording:
            break
        found.insert(0, (path, segment))
    return found


def _first_entry(path: Path) -> Segment:
    with path.open("rb") as file:
        magic = file.read(len(MAGIC))
        if magic != MAGIC:
            raise ValueError(f"one that begins with {magic!r}")
        try:
            entry = _read(file)
        except _TruncatedError:
            entry = None
    if entry is None or entry.kind is not Kind.SEGMENT:
        raise ValueError("no whole entry in it")
    return Segment.decode(entry.body)
