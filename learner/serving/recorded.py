"""A recording whose entries have been looked at: what follows them meets nothing that is not so."""

import math
from collections.abc import Iterator
from typing import TypeVar

from google.protobuf.message import DecodeError

from learner.serving.recording import Entry, Kind, Opening, Recording, decode_end
from protos import inference_pb2 as pb

Message = TypeVar("Message", pb.ClientMessage, pb.ServerMessage)


class Recorded:
    """Iterates over a recording; each entry is what a recorder writes, where it writes it.

    The streams are in order, each body can be decoded, and the messages of a learner are such as
    a learner sends. What a client said is any ClientMessage: clients make mistakes, and are recorded so.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def __iter__(self) -> Iterator[Entry]:
        """The entries, as those of `Recording`, which tells of what the disk has damaged.

        Raises:
            ConfigError: an entry is whole, and none that `--record` writes.
        """
        streams: dict[int, _Stream] = {}
        for entry in self._recording:
            try:
                _note(entry, streams)
            except ValueError as error:
                raise self._recording.refusal(str(error)) from None
            yield entry


class _Stream:
    """What has been told of a stream."""

    def __init__(self) -> None:
        self.asked = False
        self.opened = False

    def received(self, body: bytes) -> None:
        _message(pb.ClientMessage, body)
        self.asked = True

    def sent(self, body: bytes) -> None:
        kind = _message(pb.ServerMessage, body).WhichOneof("kind")
        expected = "actions" if self.opened else "opened"
        if not self.asked or kind != expected:
            raise ValueError(f"{kind} where {expected if self.asked else 'nothing'} was to be sent")
        self.opened = True


def _note(entry: Entry, streams: dict[int, _Stream]) -> None:
    """Take note of the next entry.

    Raises:
        ValueError: it is not what comes next.
    """
    kind, number = entry.kind, entry.stream
    if not math.isfinite(entry.seconds):
        raise ValueError(f"{kind.name} at {entry.seconds} s")
    if kind is Kind.GAP:
        streams.clear()
        return
    if (number in streams) is (kind in (Kind.BEGIN, Kind.CONTINUED)):
        raise ValueError(f"{kind.name} of stream {number} out of its order")
    stream = streams.setdefault(number, _Stream())
    if kind is Kind.CONTINUED:
        opening = Opening.decode(entry.body)
        if opening.received:
            stream.received(opening.received)
        if opening.sent:
            stream.sent(opening.sent)
    elif kind is Kind.RECEIVED:
        stream.received(entry.body)
    elif kind is Kind.SENT:
        stream.sent(entry.body)
    elif kind is Kind.END:
        decode_end(entry.body)
        del streams[number]


def _message(kind: type[Message], body: bytes) -> Message:
    try:
        return kind.FromString(body)
    except DecodeError:
        raise ValueError(f"bytes that are no {kind.DESCRIPTOR.name}") from None
