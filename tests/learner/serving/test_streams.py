"""What happens to a session when its stream breaks, goes on, ends, or is ended."""

import logging
import threading

import grpc
import pytest

from learner.flags import LEASE_START, LeaseEnd
from learner.serving.batcher import Request
from learner.serving.sparing import LIMIT
from learner.telemetry.report import SessionReport
from protos import inference_pb2 as pb
from protos.errors import NotServing, RequestError, RunEnded
from tests.fakes import FakeLearner, LogLines, answer
from tests.learner.serving.wire import Stream, step

StatusCode = grpc.StatusCode


def test_a_cut_stream_resumes_where_it_was(learner: FakeLearner, log: LogLines) -> None:
    with Stream(learner.address) as stream:
        token = stream.open(2).session_token
        assert stream.act(step(1, 10, 11, flags=pb.FIRST)) == [10, 11]
        stream.cut()
    log.wait_for("stream lost")
    seen: list[Request] = []
    learner.on_step = lambda request: (seen.append(request), answer(request))
    with Stream(learner.address) as stream:
        opened = stream.open(2, resume_token=token)
        assert opened.resumed
        assert opened.session_token == token
        assert list(opened.slots) == [0, 1]
        assert stream.act(step(1, 10, 11, flags=pb.FIRST)) == [10, 11]
        assert seen == [], "the answer was kept"
        assert stream.act(step(2, 20, 21)) == [20, 21]
    assert [request.flags.tolist() for request in seen] == [[0, 0]]
    assert learner.server.statistics()["count_sessions_resumed"] == 1


def test_sessions_are_listed_with_what_they_have_brought(learner: FakeLearner, log: LogLines) -> None:
    assert learner.server.sessions() == []
    with Stream(learner.address) as one, Stream(learner.address) as other:
        one.open(2, client="one\n<b>", client_version="0.1\x1b[31m")
        one.act(step(1, 10, 11, flags=pb.FIRST))
        one.act(step(2, 20, environments=[1]))
        other.open(1, client="other")
        other.cut()
        log.wait_for("other: stream lost")
        assert learner.server.sessions() == [
            SessionReport(1, "one <b>", "0.1 [31m", 2, 3, connected=True, trains=True),
            SessionReport(2, "other", "", 1, 0, connected=False, trains=True),
        ]
        one.send(pb.Close())
        assert one.ended()[0] is StatusCode.OK
        assert [session.client for session in learner.server.sessions()] == ["other"]


def test_a_step_in_a_batch_is_answered_to_the_stream_that_resumes(
    learner: FakeLearner, log: LogLines
) -> None:
    learner.on_step = learner.requests.put
    with Stream(learner.address) as stream:
        token = stream.open().session_token
        stream.send(step(1, 10))
        request = learner.next_request()
    log.wait_for("stream lost")
    with Stream(learner.address) as stream:
        assert stream.open(resume_token=token).resumed
        stream.send(step(1, 10))
        answer(request)
        assert stream.actions() == (1, [10])
        stream.send(step(2, 20))
        answer(learner.next_request())
        assert stream.actions() == (2, [20]), "each step has one answer"
    assert learner.requests.empty()


def test_an_answer_between_resuming_and_sending_again_comes_once(
    learner: FakeLearner, log: LogLines
) -> None:
    learner.on_step = learner.requests.put
    with Stream(learner.address) as stream:
        token = stream.open().session_token
        stream.send(step(1, 10))
        request = learner.next_request()
    log.wait_for("stream lost")
    learner.on_opened = lambda: answer(request)
    with Stream(learner.address) as stream:
        assert stream.open(resume_token=token).resumed
        learner.on_step = answer
        assert stream.act(step(1, 10)) == [10]
        assert stream.act(step(2, 20)) == [20]


def test_a_session_moves_on_from_a_half_open_stream(learner: FakeLearner) -> None:
    with Stream(learner.address) as former, Stream(learner.address) as stream:
        token = former.open().session_token
        assert former.act(step(1, 10)) == [10]
        assert stream.open(resume_token=token).resumed
        assert former.ended() == (StatusCode.UNAVAILABLE, "the session goes on in another stream")
        assert stream.act(step(1, 10)) == [10]
        assert stream.act(step(2, 20)) == [20]
    statistics = learner.server.statistics()
    assert statistics["sessions"] == 1


def test_an_unknown_token_begins_a_fresh_lease(learner: FakeLearner) -> None:
    with Stream(learner.address) as stream:
        opened = stream.open(resume_token=b"unknown")
        assert not opened.resumed
        assert opened.session_token != b"unknown"
        assert stream.act(step(9, 90)) == [90]


def test_after_the_lease_a_fresh_one_begins(address: str, log: LogLines) -> None:
    with FakeLearner(address, lease_seconds=0.05) as learner:
        with Stream(address) as stream:
            token = stream.open(2).session_token
            stream.act(step(1, 10, 11, flags=pb.FIRST))
        log.wait_for("a test: lease expired")
        assert learner.next_dropped() == [0, 1]
        assert learner.reasons == [LeaseEnd.EXPIRED]
        assert learner.slots.statistics()["leased"] == 0
        seen: list[Request] = []
        learner.on_step = lambda request: (seen.append(request), answer(request))
        with Stream(address) as stream:
            opened = stream.open(2, resume_token=token)
            assert not opened.resumed
            assert stream.act(step(2, 20, 21)) == [20, 21]
        assert seen[0].flags.tolist() == [LEASE_START, LEASE_START]
        assert learner.server.statistics()["count_leases_expired"] == 1


def test_a_stream_that_lives_keeps_its_lease(address: str, log: LogLines) -> None:
    with FakeLearner(address, lease_seconds=0.05) as learner:
        with Stream(address) as stream:
            token = stream.open().session_token
        log.wait_for("stream lost")
        with Stream(address) as stream:
            if not stream.open(resume_token=token).resumed:
                pytest.skip("this machine was slower than the lease")
            with Stream(address) as other:
                other.open()
            log.wait_for("lease expired")
            assert stream.act(step(1, 10)) == [10]
        assert learner.server.statistics()["count_leases_expired"] == 1


@pytest.mark.parametrize("changes", [{"num_environments": 2}, {"mode": pb.EVALUATE}])
def test_resuming_as_something_else_is_refused(address: str, changes: dict[str, int]) -> None:
    with FakeLearner(address, modes=(pb.TRAIN,)) as learner:
        other = FakeLearner("unused", modes=(pb.EVALUATE,))
        learner.server.open_lanes({**learner.lanes, **other.lanes})
        with Stream(address) as stream:
            token = stream.open().session_token
            with Stream(address) as second:
                with pytest.raises(grpc.RpcError):
                    second.open(**{"num_environments": 1, "resume_token": token, **changes})
                assert second._call.details() == (
                    "resume_token: expected the mode and 1 environments of the session that it names, "
                    "found others"
                )
            assert stream.act(step(1, 10)) == [10], "the session is not disturbed"


def test_a_half_close_without_close_keeps_the_lease(learner: FakeLearner) -> None:
    with Stream(learner.address) as stream:
        token = stream.open().session_token
        stream.half_close()
        assert stream.ended() == (StatusCode.OK, "")
    with Stream(learner.address) as stream:
        assert stream.open(resume_token=token).resumed


def test_close_releases_at_once(address: str) -> None:
    with FakeLearner(address, lease_seconds=3600) as learner, Stream(address) as stream:
        token = stream.open(2).session_token
        stream.send(pb.Close())
        assert stream.ended() == (StatusCode.OK, "")
        assert learner.next_dropped() == [0, 1]
        assert learner.slots.statistics()["leased"] == 0
        with Stream(address) as other:
            assert not other.open(2, resume_token=token).resumed


def test_what_an_environment_died_of_is_logged(learner: FakeLearner, log: LogLines) -> None:
    with Stream(learner.address) as stream:
        stream.open()
        stream.send(pb.Close(error="boom" * 200))
        stream.ended()
    assert log.lines() == ["a test: its environment failed: " + "boom" * 125]


@pytest.mark.parametrize("end", ["close", "refusal", "expiry"])
def test_slots_are_free_only_once_their_rows_are_answered(address: str, log: LogLines, end: str) -> None:
    with FakeLearner(address, lease_seconds=0.01) as learner:
        learner.on_step = learner.requests.put
        with Stream(address) as stream:
            stream.open(2)
            stream.send(step(1, 10, environments=[0]))
            stream.send(step(2, 20, environments=[1]))
            requests = [learner.next_request(), learner.next_request()]
            if end == "close":
                stream.send(pb.Close())
            elif end == "refusal":
                stream.send(step(3, 10, environments=[0]))
            if end != "expiry":
                stream.ended()
        if end == "expiry":
            log.wait_for("lease expired")
        with Stream(address) as other:
            assert list(other.open(2).slots) == [2, 3]
            answer(requests[0])
            other.send(step(1, 1))
            learner.next_request()
            assert learner.dropped.empty()
            assert learner.server.statistics()["environments"] == 4
            answer(requests[1])
            assert learner.next_dropped() == [0, 1]


def test_a_refused_step_ends_its_stream_alone(learner: FakeLearner, log: LogLines) -> None:
    with Stream(learner.address) as bad, Stream(learner.address) as good:
        bad.open(client="bad one")
        good.open()
        bad.send(step(1, float("nan")))
        message = "observation '': expected finite numbers, found NaN or infinity in row 0"
        assert bad.ended() == (StatusCode.INVALID_ARGUMENT, message)
        assert good.act(step(1, 10)) == [10]
    assert log.lines() == [f"bad one: INVALID_ARGUMENT: {message}"]
    assert learner.next_dropped() == [0]


def test_a_failure_behind_the_service_ends_that_stream_alone(
    learner: FakeLearner, log: LogLines
) -> None:
    with Stream(learner.address) as bad, Stream(learner.address) as good:
        bad.open()
        good.open()
        learner.on_step = lambda request: 1 // 0
        bad.send(step(1, 10))
        details = "ZeroDivisionError in the learner; see its log"
        assert bad.ended() == (StatusCode.INTERNAL, details)
        learner.on_step = answer
        assert good.act(step(1, 10)) == [10]
    failures = [record for record in log.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in failures] == ["a test: unexpected failure in its stream"]
    assert failures[0].exc_info is not None


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (RunEnded("the run has ended"), StatusCode.FAILED_PRECONDITION),
        (NotServing("come back later"), StatusCode.UNAVAILABLE),
    ],
)
def test_ending_streams_tells_all_the_reason(
    learner: FakeLearner, log: LogLines, reason: RequestError, status: grpc.StatusCode
) -> None:
    learner.on_step = learner.requests.put
    streams = [Stream(learner.address) for _ in range(3)]
    for stream in streams:
        stream.open()
    streams[0].send(step(1, 10))
    learner.next_request()
    learner.server.end_streams(reason)
    for stream in streams:
        with stream:
            assert stream.ended() == (status, str(reason))
    with Stream(learner.address) as late, pytest.raises(grpc.RpcError):
        late.open()
    assert late._call.code() is status
    assert log.lines() == [], "an end that was meant is no warning"
    assert learner.server.statistics()["streams"] == 0


def test_actors_that_come_back_to_a_learner_that_ends_do_not_flood_the_log(
    learner: FakeLearner, log: LogLines
) -> None:
    learner.server.end_streams(NotServing("come back later"))
    for _ in range(LIMIT + 5):
        with Stream(learner.address) as stream, pytest.raises(grpc.RpcError):
            stream.open()
    lines = log.lines(logging.INFO)
    assert len([line for line in lines if "told that come back later" in line]) == LIMIT
    assert "more lines like the last one (told of the end) come: they are counted for now" in lines


def test_telling_the_reason_often_does_not_pile_up_tracebacks(learner: FakeLearner) -> None:
    reason = NotServing("come back later")
    learner.server.end_streams(reason)
    for _ in range(3):
        with Stream(learner.address) as stream, pytest.raises(grpc.RpcError):
            stream.open()
    depth, traceback = 0, reason.__traceback__
    while traceback is not None:
        depth, traceback = depth + 1, traceback.tb_next
    assert depth <= 4


def test_answers_come_from_any_thread_to_the_streams_they_belong_to(learner: FakeLearner) -> None:
    learner.on_step = learner.requests.put
    streams = [Stream(learner.address) for _ in range(6)]
    for index, stream in enumerate(streams):
        stream.open()
        stream.send(step(1, index))
    requests = [learner.next_request() for _ in streams]
    threads = [threading.Thread(target=answer, args=[request]) for request in requests]
    for thread in threads:
        thread.start()
    for index, stream in enumerate(streams):
        with stream:
            assert stream.actions() == (1, [index])
    for thread in threads:
        thread.join()


def test_statistics_tell_what_is_open_and_what_was(learner: FakeLearner) -> None:
    assert learner.server.statistics() == {
        "sessions": 0,
        "streams": 0,
        "environments": 0,
        "environments_connected": 0,
        "actor_seconds_waiting": 0.0,
        "actor_seconds_acting": 0.0,
        "event_loop_cpu_seconds": 0.0,
    }
    with Stream(learner.address) as one, Stream(learner.address) as other:
        one.open(2)
        other.open(3)
        one.act(step(1, 10, 11))
        one.act(step(2, 10, 11))
        statistics = learner.server.statistics()
        assert (statistics["sessions"], statistics["streams"], statistics["environments"]) == (2, 2, 5)
        assert statistics["environments_connected"] == 5
        assert statistics["count_sessions_begun"] == 2
        assert 0 < statistics["actor_seconds_waiting"] < 20
        assert 0 < statistics["actor_seconds_acting"] < 20
        assert 0 < statistics["event_loop_cpu_seconds"] < 20
        one.send(pb.Close())
        one.ended()
        other.send(step(1, 10, environments=[4]))
        other.ended()
    statistics = learner.server.statistics()
    assert (statistics["sessions"], statistics["streams"], statistics["environments"]) == (0, 0, 0)
    assert statistics["environments_connected"] == 0
    assert statistics["count_errors_invalid_argument"] == 1
    assert learner.reasons == [LeaseEnd.CLOSED, LeaseEnd.REFUSED]


def test_leases_that_the_learner_ends_say_so(learner: FakeLearner) -> None:
    with Stream(learner.address) as stream:
        stream.open(2)
        learner.server.end_streams(NotServing("later"))
        assert learner.next_dropped() == [0, 1]
    assert learner.reasons == [LeaseEnd.DRAINED]


def test_environments_of_a_lost_stream_are_leased_and_not_connected(
    learner: FakeLearner, log: LogLines
) -> None:
    with Stream(learner.address) as stream:
        stream.open(3)
        assert learner.server.statistics()["environments_connected"] == 3
    log.wait_for("stream lost")
    with Stream(learner.address) as other:
        # What this stream is told comes after what the lost one left behind.
        other.open(2)
        statistics = learner.server.statistics()
        assert (statistics["environments"], statistics["environments_connected"]) == (5, 2)


def test_a_flood_of_messages_is_all_answered_at_the_streams_rate(address: str) -> None:
    with FakeLearner(address, max_message_rate=20) as learner, Stream(address) as stream:
        stream.open()
        for sequence in range(1, 41):
            assert stream.act(step(sequence, 10)) == [10]
        assert learner.server.statistics()["sessions"] == 1


def test_streams_that_say_nothing_are_not_taken_without_end(
    address: str, log: LogLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learner.serving.service.MAX_UNOPENED_STREAMS", 2)
    with FakeLearner(address):
        # Whichever of them comes last.
        with Stream(address), Stream(address), Stream(address):
            log.wait_for("RESOURCE_EXHAUSTED: 2 streams have sent no Open yet: connect again later")
        log.wait_for("INVALID_ARGUMENT: expected Open")
        with Stream(address) as stream:
            stream.open()
