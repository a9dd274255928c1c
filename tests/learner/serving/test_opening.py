"""How streams open: the handshake, and every way in which it is refused."""

import logging
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from gymnasium import spaces

from protos import inference_pb2 as pb
from protos import specs
from protos.errors import RunEnded
from tests.fakes import ACTIONS, PATIENCE_SECONDS, SPEC, FakeLearner, LogLines
from tests.learner.serving.wire import Stream, opening, refused, step

StatusCode = grpc.StatusCode


@pytest.fixture(params=["unix", "tcp"])
def any_learner(request: pytest.FixtureRequest, address: str) -> Iterator[FakeLearner]:
    with FakeLearner(address if request.param == "unix" else "127.0.0.1:0") as fake:
        yield fake


def test_a_session_opens_acts_and_closes(any_learner: FakeLearner, log: LogLines) -> None:
    with Stream(any_learner.address) as stream:
        opened = stream.open(2)
        assert len(opened.session_token) == 16
        assert not opened.resumed
        assert opened.lease_ttl_ms == 60_000
        assert list(opened.slots) == [0, 1]
        assert opened.policy_version == 7
        assert stream.act(step(1, 10, 11, flags=pb.FIRST)) == [10, 11]
        assert stream.act(step(2, 21, environments=[1])) == [21]
        assert stream.act(step(3, 31, 30, environments=[1, 0])) == [31, 30]
        stream.send(pb.Close())
        assert stream.ended() == (StatusCode.OK, "")
    assert any_learner.next_dropped() == [0, 1]
    assert log.lines() == []


def test_sessions_have_slots_and_tokens_of_their_own(learner: FakeLearner) -> None:
    with Stream(learner.address) as one, Stream(learner.address) as other:
        first, second = one.open(2), other.open(3)
        assert list(first.slots) == [0, 1]
        assert list(second.slots) == [2, 3, 4]
        assert first.session_token != second.session_token
        assert one.act(step(1, 10, 11)) == [10, 11]
        assert other.act(step(1, 20, 21, 22)) == [20, 21, 22]


OTHER_SPEC = specs.from_spaces(spaces.Box(0, 1000, (3,)), ACTIONS)

REFUSED_OPENINGS = {
    "protocol version": (
        {"protocol_version": 2},
        "protocol: expected 1.0 to 1.2 (this learner's is 1.1), found 2.1: upgrade the learner, which "
        "is the older one",
    ),
    "no environments": (
        {"num_environments": 0},
        "num_environments: expected at least 1, found 0",
    ),
    "too many environments": (
        {"num_environments": 7},
        "num_environments: expected at most 6 in a session, found 7: open several sessions, or raise "
        "--inference-batch-size",
    ),
    "no mode": ({"mode": 0}, "mode: expected TRAIN or EVALUATE, found 0"),
    "unknown mode": ({"mode": 3}, "mode: expected TRAIN or EVALUATE, found 3"),
    "mode without a lane": (
        {"mode": pb.EVALUATE},
        "mode: expected TRAIN (what this learner serves), found EVALUATE",
    ),
    "long name": ({"client": "x" * 201}, "client: expected at most 200 characters, found 201"),
    "long version": (
        {"client_version": "x" * 101},
        "client_version: expected at most 100 characters, found 101",
    ),
    "no spec": ({"spec": None}, "observation spec: expected 1 to 256 leaves, found 0"),
    "another spec": (
        {"spec": specs.to_proto(OTHER_SPEC)},
        "spec: expected observation (float32[2] in [0.0, 1000.0]), "
        "action (categorical int64[] in [0, 999]), "
        "found observation (float32[3] in [0.0, 1000.0]), action (categorical int64[] in [0, 999])",
    ),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED_OPENINGS.values(), ids=REFUSED_OPENINGS.keys())
def test_an_opening_is_refused_in_words(
    learner: FakeLearner, log: LogLines, changes: dict[str, Any], message: str
) -> None:
    open_message = opening(**changes)
    assert refused(learner.address, open_message) == (StatusCode.INVALID_ARGUMENT, message)
    client = open_message.client if len(open_message.client) <= 200 else "a client"
    expected = f"{client}: INVALID_ARGUMENT: {message}"
    (line,) = log.lines()
    assert line == expected or line == expected.replace("a test: ", "a client: ", 1)
    assert learner.slots.statistics()["leased"] == 0


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([step(1, 1)], "expected Open as the stream's first message, found step"),
        ([pb.Close()], "expected Open as the stream's first message, found close"),
        ([None], "expected Open as the stream's first message, found None"),
    ],
)
def test_what_comes_before_open_is_refused(
    learner: FakeLearner, log: LogLines, messages: list[Any], message: str
) -> None:
    assert refused(learner.address, *messages) == (StatusCode.INVALID_ARGUMENT, message)
    assert log.lines() == [f"a client: INVALID_ARGUMENT: {message}"]


def test_a_stream_that_ends_before_open_is_refused(learner: FakeLearner) -> None:
    with Stream(learner.address) as stream:
        stream.half_close()
        assert stream.ended()[0] is StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(("second", "kind"), [(opening(), "open"), (None, "None")])
def test_after_open_only_steps_and_close_will_do(
    learner: FakeLearner, log: LogLines, second: pb.Open | None, kind: str
) -> None:
    with Stream(learner.address) as stream:
        stream.open()
        stream.send(second)
        message = f"expected Step or Close after Open, found {kind}"
        assert stream.ended() == (StatusCode.INVALID_ARGUMENT, message)
    assert log.lines() == [f"a test: INVALID_ARGUMENT: {message}"]
    assert learner.next_dropped() == [0]


def test_a_stream_that_says_nothing_is_ended(address: str) -> None:
    with FakeLearner(address, open_timeout_seconds=0.05) as learner, Stream(learner.address) as stream:
        assert stream.ended() == (
            StatusCode.INVALID_ARGUMENT,
            "expected Open within 0.05 s, found nothing",
        )


@pytest.mark.parametrize("opened", [False, True])
def test_bytes_that_are_no_message_are_refused(
    learner: FakeLearner, log: LogLines, opened: bool
) -> None:
    garbage = b"\xff\xff\xff\xff"
    messages = [garbage]
    if opened:
        messages.insert(0, pb.ClientMessage(open=opening()).SerializeToString())
    with grpc.insecure_channel(learner.address) as channel:
        method = channel.stream_stream("/seedbed.v1.Inference/Act", _registered_method=False)
        call: Any = method(iter(messages), timeout=PATIENCE_SECONDS)
        with pytest.raises(grpc.RpcError):
            list(call)
        assert call.code() is StatusCode.INVALID_ARGUMENT
        assert call.details().startswith("expected a ClientMessage, found bytes that are none")
    assert len(log.lines()) == 1


def test_an_error_that_is_too_long_to_travel_is_cut(learner: FakeLearner, log: LogLines) -> None:
    leaves = {f"{'long' * 40} {index}": spaces.Box(0, 1, (2, 3)) for index in range(200)}
    spec = specs.to_proto(specs.from_spaces(spaces.Dict(leaves), ACTIONS))
    status, message = refused(learner.address, opening(spec=spec))
    assert status is StatusCode.INVALID_ARGUMENT
    assert message.startswith("spec: expected observation (float32[2] in [0.0, 1000.0]), action (cat")
    assert message.endswith("... (the learner's log has all)")
    assert 1000 < len(message) < 8000
    assert len(log.lines()[0]) > 8000


def test_the_learner_is_full_until_a_session_closes(learner: FakeLearner, log: LogLines) -> None:
    with Stream(learner.address) as one:
        one.open(6)
        assert refused(learner.address, opening(3)) == (
            StatusCode.RESOURCE_EXHAUSTED,
            "expected at most 2 environments (that many of 8 slots are free), found 3: wait for leases "
            "to end, or raise --max-environments",
        )
        assert len(log.lines()) == 1
        one.send(pb.Close())
        one.ended()
    with Stream(learner.address) as other:
        assert len(other.open(3).slots) == 3


def test_a_session_larger_than_the_learner_is_refused_for_good(address: str) -> None:
    with FakeLearner(address, capacity=4, max_rows=6) as learner:
        assert refused(address, opening(5)) == (
            StatusCode.INVALID_ARGUMENT,
            "num_environments: expected at most 4 (all slots of this learner), found 5: open smaller "
            "sessions, or raise --max-environments",
        )
        assert learner.server.statistics()["environments"] == 0
        with Stream(address) as stream:
            assert len(stream.open(4).slots) == 4


def test_a_modes_lane_gets_its_sessions(address: str) -> None:
    with FakeLearner(address, modes=(pb.TRAIN, pb.EVALUATE)) as learner:
        with Stream(address) as one, Stream(address) as other:
            token = one.open(mode=pb.TRAIN).session_token
            assert other.open(mode=pb.EVALUATE).session_token != token
        assert learner.server.statistics()["count_sessions_begun"] == 2


def test_clients_wait_until_lanes_open(address: str, log: LogLines) -> None:
    with FakeLearner(address, starting=True) as learner:
        streams = [Stream(address) for _ in range(3)]
        for stream in streams:
            stream.send(opening())
            assert learner.offered.get(timeout=PATIENCE_SECONDS) == SPEC
        learner.server.open_lanes(learner.lanes)
        slots = [next(stream._call).opened.slots[0] for stream in streams]
        assert sorted(slots) == [0, 1, 2]
        for stream in streams:
            with stream:
                assert stream.act(step(1, 5)) == [5]
    assert log.lines() == []


def test_a_client_that_leaves_while_it_waits_takes_no_slot(address: str) -> None:
    with FakeLearner(address, starting=True) as learner:
        with Stream(address) as stream:
            stream.send(opening())
            learner.offered.get(timeout=PATIENCE_SECONDS)
        with Stream(address) as other:
            other.send(opening())
            learner.offered.get(timeout=PATIENCE_SECONDS)
            learner.server.open_lanes(learner.lanes)
            assert list(next(other._call).opened.slots) == [0]
        assert learner.server.statistics()["count_sessions_begun"] == 1


def test_clients_that_wait_hear_of_the_end(address: str, log: LogLines) -> None:
    with FakeLearner(address, starting=True) as learner, Stream(address) as stream:
        stream.send(opening())
        learner.offered.get(timeout=PATIENCE_SECONDS)
        learner.server.end_streams(RunEnded("all done"))
        assert stream.ended() == (StatusCode.FAILED_PRECONDITION, "all done")
    assert log.lines(logging.WARNING) == []


def test_a_spec_that_cannot_be_offered_ends_that_stream_alone(address: str, log: LogLines) -> None:
    with FakeLearner(address, starting=True) as learner:
        learner.on_offer = lambda: 1 // 0
        assert refused(address, opening()) == (
            StatusCode.INTERNAL,
            "ZeroDivisionError in the learner; see its log",
        )
        learner.on_offer = lambda: None
        with Stream(address) as stream:
            stream.send(opening())
            learner.offered.get(timeout=PATIENCE_SECONDS)
            learner.server.open_lanes(learner.lanes)
            assert next(stream._call).WhichOneof("kind") == "opened"
    assert any(record.exc_info for record in log.records)
