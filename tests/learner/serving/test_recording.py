"""What a recorder writes comes back whole, in order, and without a hole that nobody told of."""

import errno
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from learner.serving import recorder as recorder_module
from learner.serving import segment_writer
from learner.serving.recorder import FileRecorder, NoRecorder
from learner.serving.recording import (
    MAGIC,
    SEGMENTS,
    Entry,
    Kind,
    Opening,
    Recording,
    decode_end,
    older,
)
from protos import inference_pb2 as pb
from protos.errors import ConfigError
from tests.fakes import PATIENCE_SECONDS, FakeLearner, LogLines
from tests.learner.serving.wire import Stream, opening, step
from tests.learner.telemetry.disk import full_at

OPEN = pb.ClientMessage(open=opening())
OPENED = pb.ServerMessage(opened=pb.Opened(session_token=b"secret", slots=[0]))
KILOBYTE = bytes(1000)


def asked(sequence: int, data: bytes = b"") -> pb.ClientMessage:
    return pb.ClientMessage(step=pb.Step(sequence=sequence, observation=[data]))


def answered(sequence: int) -> pb.ServerMessage:
    return pb.ServerMessage(actions=pb.Actions(sequence=sequence))


class Recorder(FileRecorder):
    """One whose failures a test sees, and whose clock counts."""

    def __init__(self, path: Path, max_bytes: int = 10**9) -> None:
        self.failures: list[BaseException] = []
        ticks = iter(range(10**9))
        super().__init__(
            path, max_bytes, on_failure=self.failures.append, clock=lambda: float(next(ticks))
        )

    def __enter__(self) -> "Recorder":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        assert not self.failures

    def drain(self) -> None:
        """Wait until nothing waits for the disk."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.statistics()["waiting_bytes"]:
            assert time.monotonic() < deadline
            threading.Event().wait(0.001)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "recording"


def files_of(path: Path) -> list[Path]:
    """What is there, but for the lock."""
    return sorted(file for file in path.parent.iterdir() if file.suffix != ".lock")


def told(path: Path) -> list[tuple[Kind, int, Any]]:
    """Kind, stream and message of each entry."""
    return [(entry.kind, entry.stream, message(entry)) for entry in Recording(path)]


def message(entry: Entry) -> Any:
    if entry.kind is Kind.RECEIVED:
        return pb.ClientMessage.FromString(entry.body)
    if entry.kind is Kind.SENT:
        return pb.ServerMessage.FromString(entry.body)
    if entry.kind is Kind.END:
        return decode_end(entry.body)
    if entry.kind is Kind.CONTINUED:
        return Opening.decode(entry.body)
    return entry.body


CONTINUED = Opening(OPEN.SerializeToString(), OPENED.SerializeToString())


# Recording --------------------------------------------------------------------------------------


def test_everything_comes_back_in_order(path: Path) -> None:
    with Recorder(path) as recorder:
        one, other = recorder.begin(), recorder.begin()
        one.received(OPEN)
        one.sent(OPENED)
        other.unreadable()
        one.received(asked(1))
        other.ended(grpc.StatusCode.INVALID_ARGUMENT, "expected é")
        one.sent(answered(1))
        one.ended(grpc.StatusCode.OK, "")
    assert told(path) == [
        (Kind.BEGIN, 1, b""),
        (Kind.BEGIN, 2, b""),
        (Kind.RECEIVED, 1, OPEN),
        (Kind.SENT, 1, OPENED),
        (Kind.UNREADABLE, 2, b""),
        (Kind.RECEIVED, 1, asked(1)),
        (Kind.END, 2, (3, "expected é")),
        (Kind.SENT, 1, answered(1)),
        (Kind.END, 1, (0, "")),
    ]
    seconds = [entry.seconds for entry in Recording(path)]
    assert seconds == sorted(set(seconds))
    assert recorder.statistics() == {
        "count_entries": 9, "count_missing": 0, "waiting_bytes": 0, "stopped": 0,
    }  # fmt: skip


def test_its_owner_alone_can_read_it(path: Path) -> None:
    before = os.umask(0)
    try:
        with Recorder(path):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_comes_before_the_start_is_kept(path: Path) -> None:
    recorder = Recorder(path)
    recorder.begin().received(OPEN)
    assert not path.exists()
    with recorder:
        pass
    assert [kind for kind, _, _ in told(path)] == [Kind.BEGIN, Kind.RECEIVED]


def test_a_former_recording_is_kept_beside(path: Path) -> None:
    for sequence in (1, 2):
        with Recorder(path) as recorder:
            recorder.begin().received(asked(sequence))
    for file, sequence in ((older(path, 1), 1), (path, 2)):
        assert told(file)[-1] == (Kind.RECEIVED, 1, asked(sequence)), "they are not mixed"


def test_another_file_is_not_replaced(path: Path) -> None:
    older(path, 2).write_text("a diary")
    with pytest.raises(
        ConfigError, match=r"--record \S+: expected new files or recordings, found anoth"
    ):
        Recorder(path).start()
    assert older(path, 2).read_text() == "a diary"


def test_a_pipe_is_refused_and_not_waited_for(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="expected new files or recordings, found another file"):
        Recorder(path).start()


def test_a_second_recorder_is_refused_and_moves_nothing(path: Path) -> None:
    with Recorder(path) as recorder:
        for _ in range(2):
            with pytest.raises(ConfigError, match=f"{path} is in use .* id {os.getpid()} on ") as raised:
                Recorder(path).start()
            assert str(raised.value).endswith("end that one first, or give this one another file")
        recorder.begin()
        assert files_of(path) == [path]
    assert [kind for kind, _, _ in told(path)] == [Kind.BEGIN]
    with Recorder(path):
        assert files_of(path) == [path, older(path, 1)], "the lock has ended with the first one"


def test_a_start_that_is_refused_holds_nothing(path: Path) -> None:
    older(path, 2).write_text("a diary")
    refused = Recorder(path)
    with pytest.raises(ConfigError, match="found another file"):
        refused.start()
    older(path, 2).unlink()
    with Recorder(path) as recorder:
        recorder.begin()


def test_an_empty_file_is_what_a_power_cut_left(path: Path) -> None:
    path.touch()
    with Recorder(path) as recorder:
        recorder.begin()
    assert [kind for kind, _, _ in told(path)] == [Kind.BEGIN]


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--record .* cannot be written: No such file or directory"):
        Recorder(tmp_path / "none" / "recording").start()


def test_closing_is_idempotent_and_needs_no_start(path: Path) -> None:
    Recorder(path).close()
    with Recorder(path) as recorder:
        recorder.close()


def test_no_recorder_takes_everything() -> None:
    record = NoRecorder().begin()
    record.received(OPEN)
    record.unreadable()
    record.sent(OPENED)
    record.ended(grpc.StatusCode.OK, "")


# Rotation ---------------------------------------------------------------------------------------


def record_much(path: Path, max_bytes: int, steps: int) -> None:
    with Recorder(path, max_bytes) as recorder:
        record, short = recorder.begin(), recorder.begin()
        record.received(OPEN)
        record.sent(OPENED)
        short.ended(grpc.StatusCode.CANCELLED, "")
        for sequence in range(1, steps + 1):
            record.received(asked(sequence, KILOBYTE))
            recorder.drain()


def test_segments_follow_each_other_without_a_seam(path: Path) -> None:
    record_much(path, 100_000, steps=50)
    assert older(path, 2).exists()
    recording = Recording(path)
    steps = [message(entry).step.sequence for entry in recording if entry.kind is Kind.RECEIVED]
    assert steps == [0, *range(1, 51)]
    assert not any(entry.kind is Kind.CONTINUED for entry in recording)
    assert (recording.gaps, recording.damage) == (0, [])


def test_the_newest_bytes_are_kept(path: Path) -> None:
    record_much(path, 20_000, steps=100)
    files = [older(path, by) for by in range(SEGMENTS)]
    assert not older(path, SEGMENTS).exists()
    assert 14_000 < sum(file.stat().st_size for file in files) <= 20_000
    first, *rest = told(path)
    assert first == (Kind.CONTINUED, 1, CONTINUED), "the stream that has ended is not told of"
    steps = [what.step.sequence for _, _, what in rest]
    assert steps == list(range(steps[0], 101))


def test_a_lost_segment_is_a_gap(path: Path) -> None:
    record_much(path, 20_000, steps=100)
    older(path, 1).unlink()
    older(path, 2).rename(older(path, 1))
    recording = Recording(path)
    kinds = [entry.kind for entry in recording]
    assert recording.gaps == 1
    assert kinds[kinds.index(Kind.GAP) + 1] is Kind.CONTINUED


# Damage -----------------------------------------------------------------------------------------


@pytest.fixture
def small(path: Path) -> Path:
    with Recorder(path) as recorder:
        record = recorder.begin()
        record.received(OPEN)
        record.sent(OPENED)
    return path


def test_an_end_in_the_middle_of_an_entry_is_told(small: Path) -> None:
    whole = small.read_bytes()
    for size in range(len(whole) - 60, len(whole)):
        small.write_bytes(whole[:size])
        recording = Recording(small)
        kinds = [entry.kind for entry in recording]
        assert kinds == [Kind.BEGIN, Kind.RECEIVED][: len(kinds)]
        if recording.damage:
            assert "ends in the middle of an entry, at byte" in recording.damage[0]
    assert kinds == [Kind.BEGIN, Kind.RECEIVED]
    assert len(recording.damage) == 1


def test_no_flipped_bit_is_taken_for_an_entry(small: Path) -> None:
    whole = small.read_bytes()
    good = list(Recording(small))
    for position in range(len(MAGIC), len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        small.write_bytes(damaged)
        try:
            recording = Recording(small)
        except ConfigError:
            continue
        entries = list(recording)
        assert entries == good[: len(entries)]
        assert len(entries) < len(good)
        assert len(recording.damage) == 1


def test_damage_is_told_with_its_place(small: Path) -> None:
    damaged = bytearray(small.read_bytes())
    damaged[-1] ^= 1
    small.write_bytes(damaged)
    recording = Recording(small)
    assert len(list(recording)) == 2
    assert len(recording.damage) == 1
    assert re.fullmatch(
        rf"{small} is damaged from byte \d+ on: a checksum does not match", recording.damage[0]
    )


def test_what_follows_a_damaged_segment_is_behind_a_gap(path: Path) -> None:
    record_much(path, 20_000, steps=100)
    file = older(path, 1)
    file.write_bytes(file.read_bytes()[:-1])
    recording = Recording(path)
    kinds = [entry.kind for entry in recording]
    assert kinds[kinds.index(Kind.GAP) + 1] is Kind.CONTINUED
    assert recording.damage == [f"{file} ends in the middle of an entry, at byte {_last_entry(file)}"]


def _last_entry(file: Path) -> int:
    head = len(pb.ClientMessage.SerializeToString(asked(100, KILOBYTE))) + 25 - 1
    return file.stat().st_size - head


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "expected a file that --record wrote, found one that begins with b''"),
        (b"GIF89a", "expected a file that --record wrote, found one that begins with b'GIF89a'"),
        (MAGIC + b"\0", "expected a file that --record wrote, found no whole entry in it"),
    ],
)
def test_other_files_are_refused(path: Path, contents: bytes | None, words: str) -> None:
    if contents is not None:
        path.write_bytes(contents)
    with pytest.raises(ConfigError) as raised:
        Recording(path)
    assert str(raised.value) == f"--file {path}{'' if words[0] == 'c' else ':'}" + f" {words}"


def test_names_with_a_number() -> None:
    assert older(Path("a/b"), 0) == Path("a/b")
    assert older(Path("a/b"), 2) == Path("a/b.2")
    assert older(Path("a/b.1"), 1) == Path("a/b.2")
    assert older(Path("a/b.0"), 1) == Path("a/b.0.1")


# A slow or full disk ----------------------------------------------------------------------------


@pytest.fixture
def log() -> Iterator[LogLines]:
    with LogLines("learner.serving.recorder") as lines:
        yield lines


def test_entries_that_find_no_room_leave_a_gap(
    path: Path, log: LogLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "MAX_WAITING_BYTES", 3000)
    recorder = Recorder(path)
    record = recorder.begin()
    record.received(OPEN)
    record.sent(OPENED)
    for sequence in (1, 2, 3, 4):
        record.received(asked(sequence, KILOBYTE))  # Nothing is written yet: 3 and 4 find no room.
    late = recorder.begin()
    late.received(OPEN)
    with recorder:
        recorder.drain()
        record.received(asked(5))
        recorder.drain()
        record.received(asked(6))
    recording = Recording(path)
    assert [(entry.kind, entry.stream) for entry in recording] == [
        (Kind.BEGIN, 1),
        (Kind.RECEIVED, 1),
        (Kind.SENT, 1),
        (Kind.RECEIVED, 1),
        (Kind.RECEIVED, 1),
        (Kind.GAP, 0),
        (Kind.CONTINUED, 1),
        (Kind.CONTINUED, 2),
        (Kind.RECEIVED, 1),
        (Kind.RECEIVED, 1),
    ]
    assert (recording.gaps, recording.missing) == (1, 4)
    assert recorder.statistics()["count_missing"] == 4
    assert log.lines() == [
        f"messages are missing in the recording {path}: they come faster than it is written, or are "
        "larger than an eighth of --record-max-bytes"
    ]


def test_a_gap_at_the_end_is_told_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "MAX_WAITING_BYTES", 500)
    recorder = Recorder(path)
    for _ in range(3):
        recorder.begin().received(asked(1, bytes(300)))
    with recorder:
        pass
    recording = Recording(path)
    assert [entry.kind for entry in recording][-1] is Kind.GAP
    assert recording.missing == recorder.statistics()["count_missing"] > 0


def test_a_segment_after_a_gap_knows_the_streams(path: Path) -> None:
    with Recorder(path, 20_000) as recorder:
        record = recorder.begin()
        record.received(OPEN)
        record.sent(OPENED)
        record.received(asked(1, bytes(10_000)))  # More than a segment is to hold.
        for sequence in range(2, 30):
            record.received(asked(sequence, KILOBYTE))
            recorder.drain()
    assert recorder.statistics()["count_missing"] == 1
    assert told(path)[0] == (Kind.CONTINUED, 1, CONTINUED)


def test_a_full_disk_ends_the_recording_alone(
    path: Path, log: LogLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Recorder(path) as recorder:
        write = os.write

        def full(file: int, data: Any) -> int:
            if len(data) > 100:
                return write(file, data[:100])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "write", full)
        record = recorder.begin()
        record.received(asked(1, KILOBYTE))
        log.wait_for("the recording ends here")
        monkeypatch.undo()
        recorder._thread.join(PATIENCE_SECONDS)
        record.received(asked(2))
        recorder.begin().ended(grpc.StatusCode.OK, "")
    assert log.lines(logging.ERROR) == [
        f"{path} cannot be written (No space left on device): the recording ends here, serving goes on"
    ]
    assert recorder.statistics()["stopped"] == 1
    recording = Recording(path)
    assert [entry.kind for entry in recording] == [Kind.BEGIN]
    assert len(recording.damage) == 1


def test_a_start_on_a_full_disk_leaves_things_as_they_were(path: Path) -> None:
    with Recorder(path) as recorder:
        recorder.begin()
    before = path.read_bytes()
    with full_at(10), pytest.raises(ConfigError, match=r"--record .* cannot be written: File too large"):
        Recorder(path).start()
    assert [(file, file.read_bytes()) for file in files_of(path)] == [(path, before)]
    with Recorder(path):
        assert older(path, 1).read_bytes() == before, "the next start finds nothing in its way"


def test_a_disk_that_is_full_between_two_segments_leaves_the_former_whole(
    path: Path, log: LogLines
) -> None:
    with Recorder(path, 20_000) as recorder:
        record = recorder.begin()
        for sequence in range(1, 5):
            record.received(asked(sequence, KILOBYTE))
            recorder.drain()
        with full_at(10):
            record.received(asked(5, KILOBYTE))
            log.wait_for("the recording ends here")
            recorder._thread.join(PATIENCE_SECONDS)
    assert files_of(path) == [path]
    recording = Recording(path)
    assert len(list(recording)) == 5
    assert recording.damage == []


def test_another_failure_is_heard_of(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(path)
    recorder.start()

    def fail(*_: object) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr(segment_writer, "encode", fail)
    recorder.begin()
    recorder._thread.join(PATIENCE_SECONDS)
    recorder.close()
    assert [type(failure) for failure in recorder.failures] == [ZeroDivisionError]


def test_a_thread_that_hangs_is_not_waited_for(
    path: Path, log: LogLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(path)
    recorder.start()
    gate, write = threading.Event(), os.write

    def hang(file: int, data: Any) -> int:
        gate.wait(PATIENCE_SECONDS)
        return write(file, data)

    monkeypatch.setattr(os, "write", hang)
    recorder.begin()
    recorder.close(timeout_seconds=0.0)
    assert log.lines() == ["the recorder did not end within 0 s"]
    gate.set()
    recorder._thread.join(PATIENCE_SECONDS)
    assert not recorder._thread.is_alive()


# The service ------------------------------------------------------------------------------------


def _carry(stream: Stream) -> None:
    stream.open()
    stream.act(step(1, 10))
    stream.send(pb.Close())
    assert stream.ended()[0] is grpc.StatusCode.OK


def _refuse_opening(stream: Stream) -> None:
    stream.send(opening(mode=pb.EVALUATE))
    stream.ended()


def _refuse_step(stream: Stream) -> None:
    stream.open()
    stream.send(step(1, float("nan")))
    stream.ended()


def _half_close(stream: Stream) -> None:
    stream.open()
    stream.half_close()
    stream.ended()


@pytest.mark.parametrize(
    ("talk", "kinds", "code"),
    [
        (_carry, "open opened step actions close", grpc.StatusCode.OK),
        (_refuse_opening, "open", grpc.StatusCode.INVALID_ARGUMENT),
        (_refuse_step, "open opened step", grpc.StatusCode.INVALID_ARGUMENT),
        (_half_close, "open opened", grpc.StatusCode.OK),
    ],
)
def test_the_service_tells_of_each_message(
    address: str, path: Path, talk: Callable[[Stream], None], kinds: str, code: grpc.StatusCode
) -> None:
    with Recorder(path) as recorder, FakeLearner(address, recorder=recorder), Stream(address) as stream:
        talk(stream)
    begin, *messages, end = told(path)
    assert begin[0] is Kind.BEGIN
    assert " ".join(what.WhichOneof("kind") for _, _, what in messages) == kinds
    assert end[0] is Kind.END
    assert end[2][0] == code.value[0]


def test_the_service_tells_of_bytes_that_are_no_message(address: str, path: Path) -> None:
    with (
        Recorder(path) as recorder,
        FakeLearner(address, recorder=recorder),
        grpc.insecure_channel(address) as channel,
    ):
        method: Any = channel.stream_stream("/seedbed.v1.Inference/Act")
        with pytest.raises(grpc.RpcError):
            list(method(iter([b"\xff"]), timeout=PATIENCE_SECONDS))
    assert [kind for kind, _, _ in told(path)] == [Kind.BEGIN, Kind.UNREADABLE, Kind.END]


def test_the_service_tells_of_a_stream_that_was_cut(address: str, path: Path) -> None:
    with (
        LogLines("learner.serving") as log,
        Recorder(path) as recorder,
        FakeLearner(address, recorder=recorder),
    ):
        with Stream(address) as stream:
            stream.open()
            stream.cut()
        log.wait_for("stream lost")
    assert [kind for kind, _, _ in told(path)][-1] is Kind.END
