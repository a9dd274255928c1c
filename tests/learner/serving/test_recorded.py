"""Entries with good checksums that no recorder has written are refused, and nothing follows them."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from learner.serving.recorded import Recorded
from learner.serving.recording import (
    MAGIC,
    Entry,
    Kind,
    Opening,
    Recording,
    Segment,
    encode,
    encode_count,
    encode_end,
)
from protos import inference_pb2 as pb
from protos.errors import ConfigError
from tests.learner.serving.wire import opening, step

ASKED = pb.ClientMessage(open=opening()).SerializeToString()
OPENED = pb.ServerMessage(opened=pb.Opened(session_token=b"secret", slots=[0])).SerializeToString()
STEP = pb.ClientMessage(step=step(1, 10)).SerializeToString()
ACTIONS = pb.ServerMessage(actions=pb.Actions(sequence=1)).SerializeToString()

BEGIN = Entry(Kind.BEGIN, 1.0, 1)
RECEIVED = Entry(Kind.RECEIVED, 2.0, 1, ASKED)
SENT = Entry(Kind.SENT, 3.0, 1, OPENED)
CONTINUED = Entry(Kind.CONTINUED, 3.0, 1, Opening(ASKED, OPENED).encode())
END = Entry(Kind.END, 4.0, 1, encode_end(0, "é"))
GAP = Entry(Kind.GAP, 4.0, 0, encode_count(2))


def of(kind: Kind, body: bytes, seconds: float = 3.0) -> Entry:
    return Entry(kind, seconds, 1, body)


def written(path: Path, entries: Sequence[Entry], segment: bytes = b"") -> Path:
    head = Entry(Kind.SEGMENT, 0.0, 0, segment or Segment(bytes(16), 0, 0.0).encode())
    path.write_bytes(MAGIC + b"".join(map(encode, [head, *entries])))
    return path


GOOD = [
    [BEGIN, RECEIVED, SENT, of(Kind.RECEIVED, STEP), of(Kind.SENT, ACTIONS), END],
    [BEGIN, of(Kind.UNREADABLE, b""), END, BEGIN, END],
    [BEGIN, of(Kind.RECEIVED, STEP), END],
    [CONTINUED, of(Kind.SENT, ACTIONS), GAP, CONTINUED, END],
    [of(Kind.CONTINUED, Opening().encode()), RECEIVED, SENT],
    [of(Kind.CONTINUED, Opening(ASKED).encode()), SENT],
]

BAD = [
    ([RECEIVED], "RECEIVED of stream 1 out of its order"),
    ([BEGIN, END, of(Kind.UNREADABLE, b"")], "UNREADABLE of stream 1 out of its order"),
    ([BEGIN, BEGIN], "BEGIN of stream 1 out of its order"),
    ([BEGIN, CONTINUED], "CONTINUED of stream 1 out of its order"),
    ([BEGIN, GAP, END], "END of stream 1 out of its order"),
    ([BEGIN, SENT], "opened where nothing was to be sent"),
    ([of(Kind.CONTINUED, Opening(b"", OPENED).encode())], "opened where nothing was to be sent"),
    ([BEGIN, RECEIVED, of(Kind.SENT, ACTIONS)], "actions where opened was to be sent"),
    ([BEGIN, RECEIVED, SENT, SENT], "opened where actions was to be sent"),
    ([BEGIN, RECEIVED, of(Kind.SENT, b"")], "None where opened was to be sent"),
    ([BEGIN, of(Kind.RECEIVED, b"\xff")], "bytes that are no ClientMessage"),
    ([BEGIN, RECEIVED, of(Kind.SENT, b"\xff")], "bytes that are no ServerMessage"),
    ([of(Kind.CONTINUED, b"\1")], "1 bytes where 4 were to be"),
    ([of(Kind.CONTINUED, b"\5\0\0\0xx")], "an opening of 5 bytes in 2"),
    ([BEGIN, of(Kind.END, b"")], "an end without a status"),
    ([BEGIN, of(Kind.END, b"\0\xff")], "'utf-8' codec can't decode byte 0xff in position 0"),
    ([Entry(Kind.GAP, 1.0, 0, b"123")], "3 bytes where 8 were to be"),
    ([of(Kind.BEGIN, b"", float("nan"))], "BEGIN at nan s"),
    ([of(Kind.BEGIN, b"", float("inf"))], "BEGIN at inf s"),
]


@pytest.mark.parametrize("entries", GOOD)
def test_what_a_recorder_writes_comes_through(tmp_path: Path, entries: Sequence[Entry]) -> None:
    path = written(tmp_path / "recording", entries)
    assert list(Recorded(Recording(path))) == entries


@pytest.mark.parametrize(("entries", "found"), BAD, ids=[found for _, found in BAD])
def test_what_no_recorder_writes_is_refused(
    tmp_path: Path, entries: Sequence[Entry], found: str
) -> None:
    path = written(tmp_path / "recording", entries)
    with pytest.raises(ConfigError) as raised:
        list(Recorded(Recording(path)))
    at = path.stat().st_size - len(encode(entries[-1]))
    words = f"--file {path}: expected entries as --record writes them, found {found}"
    assert str(raised.value).startswith(words)
    assert str(raised.value).endswith(f", at byte {at}")


def test_a_segment_that_says_too_little_is_none(tmp_path: Path) -> None:
    path = written(tmp_path / "recording", [BEGIN], segment=b"short")
    with pytest.raises(ConfigError, match="that --record wrote, found 5 bytes where 32 were to be"):
        Recording(path)
