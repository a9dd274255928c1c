"""A recorded session, replayed to another learner, makes it do the same, or it is said where not."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from learner.config import LearnerOptions, ReplayOptions
from learner.replaying import replay
from learner.serving.batcher import Request
from learner.serving.recorder import FileRecorder
from learner.serving.recording import Entry, Kind, Recording, encode, encode_count, older
from learner.serving.security import ServerSecurity
from protos import inference_pb2 as pb
from protos.errors import ConfigError, NotServing
from tests.certificates import OTHER_TOKEN, TOKEN, Authority
from tests.fakes import FakeLearner, LogLines, answer, first_numbers
from tests.integration.commands import seedbed
from tests.integration.processes import Launcher, options
from tests.learner.serving.wire import Stream, opening, step


class Learner(FakeLearner):
    """A learner that keeps what it was asked: slots, flags and first numbers of each step."""

    def __init__(self, address: str, **options: Any) -> None:
        super().__init__(address, **options)
        self.asked: list[tuple[list[int], list[int], list[int]]] = []
        self.on_step = self.note

    def note(self, request: Request) -> None:
        self.asked.append(
            (request.slots.tolist(), request.flags.tolist(), first_numbers(request).tolist())
        )
        answer(request)


class Recorded:
    """Where a recording is made, and what it was made of."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "recording"
        self.folder = folder
        self.asked: list[tuple[list[int], list[int], list[int]]] = []

    def record(self, talk: Callable[[Learner], None], max_bytes: int = 10**9, **options: Any) -> None:
        """Record what `talk` says to a learner."""
        failures: list[BaseException] = []
        recorder = FileRecorder(self.file, max_bytes, on_failure=failures.append)
        with Learner(f"unix:{self.folder}/r", recorder=recorder, **options) as learner:
            recorder.start()
            talk(learner)
        recorder.close()
        assert not failures
        self.asked = learner.asked

    def replay(self, learner: FakeLearner, token: str | None = None, **options: Any) -> int:
        """Feed the recording to a learner; the exit status."""
        chosen = ReplayOptions(file=str(self.file), server=learner.address, **options)
        return replay(chosen, chosen.credentials(token))


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


@pytest.fixture
def other(tmp_path: Path) -> str:
    """Address of the learner that is replayed to."""
    return f"unix:{tmp_path}/o"


def result(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return printed


# What is said -----------------------------------------------------------------------------------


def say_much(learner: Learner) -> None:
    """Two actors side by side, one of which is cut and comes back; and one of every mistake."""
    with Stream(learner.address) as steady, LogLines("learner.serving") as log:
        steady.open(2)
        steady.act(step(1, 1, 2, flags=pb.FIRST))
        with Stream(learner.address) as cut:
            token = cut.open(client="the one that is cut").session_token
            cut.act(step(1, 10, flags=pb.FIRST))
            steady.act(step(2, 3, 4))
            cut.cut()
        log.wait_for("stream lost")
        with Stream(learner.address) as back:
            assert back.open(resume_token=token).resumed
            back.act(step(1, 10, flags=pb.FIRST))  # Its answer is kept: no new step.
            back.act(step(2, 11, flags=pb.TERMINATED))
            back.act(step(3, 12, flags=pb.FIRST))
            back.send(step(4, 13, flags=pb.FIRST))
            assert "FIRST in the middle of an episode" in back.ended()[1]
        with Stream(learner.address) as wrong:
            wrong.send(opening(num_environments=7))
            wrong.ended()
        with Stream(learner.address) as wrong:
            wrong.open()
            wrong.send()
            wrong.ended()
        with grpc.insecure_channel(learner.address) as channel:
            method: Any = channel.stream_stream("/seedbed.v1.Inference/Act")
            with pytest.raises(grpc.RpcError):
                list(method(iter([b"\xff"]), timeout=20))
        # Two steps at once, of one environment each.
        steady.send(step(3, 5, environments=[0]))
        steady.send(step(4, 6, environments=[1]))
        assert sorted([steady.actions(), steady.actions()]) == [(3, [5]), (4, [6])]
        steady.send(pb.Close())
        steady.ended()


def say_little(learner: Learner) -> None:
    with Stream(learner.address) as stream:
        stream.open()
        stream.act(step(1, 10, flags=pb.FIRST))
        stream.send(pb.Close())
        stream.ended()


def say_steps(learner: Learner, steps: int) -> None:
    with Stream(learner.address) as stream:
        stream.open()
        for sequence in range(1, steps + 1):
            stream.act(step(sequence, sequence % 100))


def say_for_long(learner: Learner) -> None:
    say_steps(learner, 8999)


# The same ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("speed", ["max", "real"])
def test_another_learner_meets_the_same(
    recorded: Recorded, other: str, capsys: pytest.CaptureFixture[str], speed: str
) -> None:
    recorded.record(say_much)
    with Learner(other) as learner:
        assert recorded.replay(learner, speed=speed) == 0
        statistics = learner.server.statistics()
    assert learner.asked == recorded.asked
    assert len(learner.asked) == 7
    found = result(capsys)
    del found["seconds"]
    assert found == {
        "streams": 6,
        "streams_in_the_middle": 0,
        "steps": 9,
        "answers": 8,
        "sessions_resumed": 1,
        "refused": {"INVALID_ARGUMENT": 4},
        "differences": 0,
        "first_differences": [],
        "gaps": 0,
        "damage": [],
    }
    assert statistics["sessions"] == 0, "no lease is left behind"


def test_leases_that_nobody_resumes_are_released(recorded: Recorded, other: str) -> None:
    """In the recording they expired; a replay is faster than that."""

    def cut_often(learner: Learner) -> None:
        with LogLines("learner.serving") as log:
            for _ in range(5):
                with Stream(learner.address) as stream:
                    stream.open(4)
                    stream.act(step(1, 10))
                    stream.cut()
                log.wait_for("lease expired")

    recorded.record(cut_often, lease_seconds=0.01)
    with Learner(other) as learner:
        assert recorded.replay(learner) == 0
        assert learner.slots.leased == 0


def test_streams_that_were_open_to_the_end(recorded: Recorded, other: str) -> None:
    """The recorded learner ended before its actor."""

    def leave_open(learner: Learner) -> None:
        stream = Stream(learner.address)
        stream.open()
        stream.act(step(1, 10))
        learner.server.close()
        stream.ended()

    recorded.record(leave_open)
    with Learner(other) as learner:
        assert recorded.replay(learner) == 0
        assert learner.slots.leased == 0


def test_a_session_that_moved_to_another_stream(recorded: Recorded, other: str) -> None:
    def move(learner: Learner) -> None:
        with Stream(learner.address) as former, Stream(learner.address) as stream:
            token = former.open().session_token
            former.act(step(1, 10))
            assert stream.open(resume_token=token).resumed
            former.ended()
            stream.act(step(2, 20))
            stream.send(pb.Close())
            stream.ended()

    recorded.record(move)
    with Learner(other) as learner:
        assert recorded.replay(learner) == 0
    assert learner.asked == recorded.asked


def test_a_token_that_was_not_known_then_is_not_used(recorded: Recorded, other: str) -> None:
    """The lease had expired in the recording, and would not have yet in the replay."""

    def come_late(learner: Learner) -> None:
        with LogLines("learner.serving") as log:
            with Stream(learner.address) as stream:
                token = stream.open().session_token
                stream.act(step(1, 10))
                stream.cut()
            log.wait_for("lease expired")
        with Stream(learner.address) as stream:
            assert not stream.open(resume_token=token).resumed
            stream.act(step(1, 10))

    recorded.record(come_late, lease_seconds=0.01)
    with Learner(other) as learner:
        assert recorded.replay(learner) == 0
    assert [numbers for _, _, numbers in learner.asked] == [[10], [10]]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_commands(launch: Launcher, tmp_path: Path) -> None:
    """A learner with a policy, an actor of its own accord, and one more learner, which asks the first
    client for the specs."""
    file, address, other = tmp_path / "recording", f"unix:{tmp_path}/s", f"unix:{tmp_path}/o"
    chosen = {"listen": address, "logdir": tmp_path / "run", "total_steps": 1000, "record": file}
    recorded = launch.seedbed("learner", *options(**chosen))
    actor = launch.actor(*options(server=address, env="CartPole-v1", num_envs=2))
    assert recorded.status() == 0, recorded.stderr
    assert actor.status() == 0, actor.stderr
    chosen = {"listen": other, "logdir": tmp_path / "other", "total_steps": 100_000}
    learner = launch.seedbed("learner", *options(**chosen))
    learner.says("listening on")
    done = seedbed("replay", str(file), "--server", other)
    assert done.status == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["steps"] >= 500
    assert (found["streams"], found["differences"], found["gaps"]) == (1, 0, 0)


# What is not so ---------------------------------------------------------------------------------


def change(file: Path, kind: Kind, body: bytes) -> None:
    """Give the last entry of the kind another body, with its checksum."""
    entry = [entry for entry in Recording(file) if entry.kind is kind][-1]
    data = file.read_bytes()
    file.write_bytes(data.replace(encode(entry), encode(entry._replace(body=body))))


def test_entries_that_are_none_are_refused_before_anything_is_sent(recorded: Recorded) -> None:
    recorded.record(say_little)
    change(recorded.file, Kind.RECEIVED, b"\xff")
    # There is no learner: looking for one would take longer, and end with another status.
    done = seedbed("replay", str(recorded.file), "--server", f"unix:{recorded.folder}/nobody")
    assert done.status == 2
    *_, last = done.stderr.splitlines()
    assert "expected entries as --record writes them, found bytes that are no ClientMessage" in last
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "message",
    [
        pb.ClientMessage(step=pb.Step(sequence=1, environment=b"1", observation=[b"123"])),
        pb.ClientMessage(open=pb.Open(spec=pb.EnvironmentSpec(action=pb.ArraySpec(dtype="none")))),
        pb.ClientMessage(),
    ],
)
def test_what_the_learner_must_refuse_is_told_as_a_difference(
    recorded: Recorded, other: str, capsys: pytest.CaptureFixture[str], message: pb.ClientMessage
) -> None:
    recorded.record(lambda learner: say_steps(learner, 1))
    change(recorded.file, Kind.RECEIVED, message.SerializeToString())
    with LogLines("learner.replay_stream"), Learner(other) as learner:
        assert recorded.replay(learner) == 1
    found = result(capsys)
    assert found["refused"] == {"INVALID_ARGUMENT": 1}
    assert "expected actions for step 1, found INVALID_ARGUMENT: " in found["first_differences"][0]


# The middle -------------------------------------------------------------------------------------


def test_a_stream_whose_beginning_is_gone(
    recorded: Recorded, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded.record(say_for_long, max_bytes=1_000_000)
    older(recorded.file, 1).unlink(missing_ok=True)
    with Learner(other) as learner:
        assert recorded.replay(learner) == 0
    found = result(capsys)
    assert (found["streams"], found["streams_in_the_middle"]) == (1, 1)
    assert 0 < found["steps"] < 8999
    numbers = [numbers for _, _, numbers in recorded.asked]
    assert [numbers for _, _, numbers in learner.asked] == numbers[-found["steps"] :]


def test_what_follows_a_gap_is_a_stream_of_its_own(
    recorded: Recorded, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Across the gap the order of rows is broken: two FIRST in one session would be refused."""

    def two_episodes(learner: Learner) -> None:
        with Stream(learner.address) as stream:
            stream.open(8)
            stream.act(step(1, 1, environments=[0], flags=pb.FIRST))
            stream.act(step(2, 2, environments=[0], flags=pb.TERMINATED))
            stream.act(step(3, 3, environments=[0], flags=pb.FIRST))

    recorded.record(two_episodes, max_rows=8)
    data = recorded.file.read_bytes()
    entries = list(Recording(recorded.file))
    lost = [
        entry for entry in entries if entry.kind in (Kind.RECEIVED, Kind.SENT) and 2 in _sequences(entry)
    ]
    assert len(lost) == 2
    opened = [entry for entry in entries if entry.stream][1:3]
    body = struct.pack("<I", len(opened[0].body)) + opened[0].body + opened[1].body
    gap = encode(Entry(Kind.GAP, lost[0].seconds, 0, encode_count(2)))
    gap += encode(Entry(Kind.CONTINUED, lost[0].seconds, 1, body))
    recorded.file.write_bytes(data.replace(b"".join(map(encode, lost)), gap))

    with LogLines("learner.replaying") as log, Learner(other, max_rows=8) as learner:
        assert recorded.replay(learner) == 0
    assert [numbers for _, _, numbers in learner.asked] == [[1], [3]]
    found = result(capsys)
    assert (found["streams"], found["streams_in_the_middle"], found["gaps"]) == (2, 1, 1)
    assert log.lines() == [
        "entries are missing in 1 places of the recording, 2 or more: what follows each is fed as "
        "streams that begin in the middle"
    ]


def _sequences(entry: Entry) -> tuple[int, int]:
    return (
        pb.ClientMessage.FromString(entry.body).step.sequence if entry.kind is Kind.RECEIVED else 0,
        pb.ServerMessage.FromString(entry.body).actions.sequence if entry.kind is Kind.SENT else 0,
    )


def test_a_recording_that_was_cut_off_is_fed_as_far_as_it_goes(
    recorded: Recorded, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded.record(say_little)
    recorded.file.write_bytes(recorded.file.read_bytes()[:-3])
    with LogLines("learner.replaying") as log, Learner(other) as learner:
        assert recorded.replay(learner) == 0
    assert learner.asked == recorded.asked
    (line,) = log.lines()
    assert "ends in the middle of an entry, at byte" in line
    assert result(capsys)["damage"] == [line]


# Something else ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"modes": (pb.EVALUATE,)},
            "stream 1: expected Opened, found INVALID_ARGUMENT: mode: expected EVALUATE "
            "(what this learner serves), found TRAIN",
        ),
        (
            {"capacity": 1},
            "stream 1: expected Opened, found INVALID_ARGUMENT: num_environments: expected at most 1 "
            "(all slots of this learner), found 2: open smaller sessions, or raise --max-environments",
        ),
        (
            {"max_rows": 7, "capacity": 16},
            "stream 4: expected INVALID_ARGUMENT: num_environments: expected at most 6 in a session, "
            "found 7: open several sessions, or raise --inference-batch-size, found that it was "
            "accepted",
        ),
    ],
    ids=["mode", "capacity", "rows"],
)
def test_a_learner_that_decides_otherwise(
    recorded: Recorded,
    other: str,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    expected: str,
) -> None:
    recorded.record(say_much)
    with LogLines("learner.replay_stream") as log, Learner(other, **changes) as learner:
        assert recorded.replay(learner) == 1
    assert expected in log.lines()
    assert expected in result(capsys)["first_differences"]


def test_a_session_that_is_not_resumed_now(recorded: Recorded, other: str) -> None:
    """What was recorded went on with a session after its Close."""
    opened = pb.Opened(session_token=b"secret", slots=[0])
    recorder = FileRecorder(recorded.file, 10**9, on_failure=lambda error: None)
    for resumes in (False, True):
        record = recorder.begin()
        record.received(pb.ClientMessage(open=opening(resume_token=b"secret" if resumes else b"")))
        opened.resumed = resumes
        record.sent(pb.ServerMessage(opened=opened))
        record.received(pb.ClientMessage(close=pb.Close()))
        record.ended(grpc.StatusCode.OK, "")
    recorder.start()
    recorder.close()
    with LogLines("learner.replay_stream") as log, Learner(other) as learner:
        assert recorded.replay(learner) == 1
    assert log.lines() == ["stream 2: expected the session to be resumed, found a fresh lease"]


def test_a_step_that_is_accepted_now(recorded: Recorded, other: str) -> None:
    def refuse(learner: Learner) -> None:
        learner.on_step = lambda request: 1 // 0
        with Stream(learner.address) as stream:
            stream.open()
            stream.send(step(1, 10))
            stream.ended()

    recorded.record(refuse)
    with LogLines("learner.replay_stream") as log, Learner(other) as learner:
        assert recorded.replay(learner) == 1
    assert log.lines() == [
        "stream 1: expected INTERNAL: ZeroDivisionError in the learner; see its log, found that it was "
        "accepted"
    ]


def test_a_step_that_is_refused_now(recorded: Recorded, other: str) -> None:
    recorded.record(say_little)
    with LogLines("learner.replay_stream") as log, Learner(other) as learner:
        learner.on_step = lambda request: 1 // 0
        assert recorded.replay(learner) == 1
    assert log.lines() == [
        "stream 1: expected actions for step 1, found INTERNAL: ZeroDivisionError in the learner; "
        "see its log"
    ]


def test_another_refusal_than_then(recorded: Recorded, other: str) -> None:
    def refuse(learner: Learner) -> None:
        with Stream(learner.address) as holder:
            holder.open(6)
            # After it: streams are numbered as they come.
            with Stream(learner.address) as stream:
                stream.send(opening(num_environments=6))
                stream.ended()

    recorded.record(refuse)
    with LogLines("learner.replay_stream") as log, Learner(other, capacity=6) as learner:
        assert recorded.replay(learner) == 0, "as full as the other one"
    with LogLines("learner.replay_stream") as log, Learner(other, max_rows=5, capacity=4) as learner:
        assert recorded.replay(learner) == 1
    assert [line.partition(":")[0] for line in log.lines()] == ["stream 1", "stream 2"]
    assert "expected RESOURCE_EXHAUSTED: " in log.lines()[1]
    assert "found INVALID_ARGUMENT: " in log.lines()[1]


def test_actions_of_another_shape(recorded: Recorded, other: str) -> None:
    recorded.record(say_little)
    with LogLines("learner.replay_stream") as log, Learner(other) as learner:
        learner.on_step = lambda request: request.reply(np.zeros((1, 2), np.int64), 7)
        assert recorded.replay(learner) == 1
    assert log.lines() == ["stream 1: expected actions of 8 bytes for step 1, found 16 bytes"]


def test_a_learner_that_does_not_answer(recorded: Recorded, other: str) -> None:
    recorded.record(say_little)
    with LogLines("learner.replay_stream") as log, Learner(other) as learner:
        learner.on_step = lambda request: None
        assert recorded.replay(learner, answer_timeout_seconds=0.2) == 1
    assert log.lines() == ["stream 1: expected actions for step 1, found nothing within 0.2 s"]


def test_a_learner_that_asks_for_tls_and_a_token(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path / "pki")
    protected = LearnerOptions(
        **authority.issue("learner"), tls_client_ca=authority.ca, token_file=authority.tokens(TOKEN)
    )
    security = ServerSecurity(protected, environ={})
    shown = {"tls_ca": authority.ca, **authority.issue("actor")}
    recorded.record(say_little)
    with Learner("127.0.0.1:0", security=security) as learner:
        assert recorded.replay(learner, TOKEN, **shown) == 0
        assert learner.asked == recorded.asked
        capsys.readouterr()
        assert recorded.replay(learner, OTHER_TOKEN, **shown) == 1
        assert result(capsys)["refused"] == {"UNAUTHENTICATED": 1}
    with pytest.raises(ConfigError, match="--tls-cert needs TLS: give --tls-ca too"):
        recorded.replay(learner, **authority.issue("actor"))
    with pytest.raises(ConfigError, match="a token would travel over the network in plain text"):
        recorded.replay(FakeLearner("10.0.0.3:7777"), TOKEN)


def test_no_learner(recorded: Recorded, other: str) -> None:
    recorded.record(say_little)
    with pytest.raises(NotServing, match=r"no learner at unix:.* within 0\.1 s"):
        recorded.replay(FakeLearner(other), answer_timeout_seconds=0.1)


def test_no_recording(recorded: Recorded, other: str) -> None:
    with pytest.raises(ConfigError, match=r"--file .* cannot be read: No such file or directory"):
        recorded.replay(FakeLearner(other))
