"""Streams from the server's side: two on one session, and one that nobody reads.

The network is a test's: where it holds a stream up, its client hears late that its session goes on
elsewhere, and may still say something.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import numpy as np
import pytest

from learner.serving.batcher import Request
from learner.serving.leases import Lane
from learner.serving.service import InferenceService
from learner.serving.slots import Slots
from protos import inference_pb2 as pb
from protos.errors import RunEnded
from tests.fakes import SPEC, answer
from tests.learner.serving.wire import opening, step

CAPACITY = 4


class Call:
    """The server's side of one stream, and the network behind it."""

    def __init__(self, service: InferenceService) -> None:
        self.sent: list[pb.ServerMessage] = []
        self.status: tuple[grpc.StatusCode, str] | None = None
        self._flows = True
        self._unsent: deque[bytes] = deque()
        self._status: tuple[grpc.StatusCode, str] | None = None
        self._take: Callable[[bytes | None], None] | None = None
        rpc: Any = self
        self.task = asyncio.create_task(service.act(rpc))

    async def bring(self, message: Any) -> None:
        """Let a message, bytes that are none, or the end (None) arrive, and all that follows happen."""
        await settle()
        self.arrive(message)
        await settle()

    def arrive(self, message: Any) -> None:
        """Let it arrive, and nothing follow yet."""
        if message is not None and not isinstance(message, bytes | pb.ClientMessage):
            message = pb.ClientMessage(**{type(message).__name__.lower(): message})
        take, self._take = self._take, None
        if take is not None:  # Else it waits for a reader, and none will come.
            take(message.SerializeToString() if isinstance(message, pb.ClientMessage) else message)

    async def open(self, **changes: Any) -> pb.Opened:
        await self.bring(opening(**changes))
        opened: pb.Opened = self.sent.pop().opened
        return opened

    @property
    def listens(self) -> bool:
        """Whether it is asked for the next message."""
        return self._take is not None

    def actions(self) -> list[tuple[int, list[int]]]:
        """Sequence and actions of the answers so far."""
        return [
            (message.actions.sequence, np.frombuffer(message.actions.action, np.int64).tolist())
            for message in self.sent
        ]

    def hold(self) -> None:
        """The network takes one more message, and delivers none."""
        self._flows = False

    def let_flow(self) -> None:
        self._flows = True
        self._deliver()

    def _deliver(self) -> None:
        while self._flows and self._unsent:
            self.sent.append(pb.ServerMessage.FromString(self._unsent.popleft()))
        if not self._unsent:
            self.status = self._status

    # As learner.serving.rpc.Rpc ---------------------------------------------------------------

    async def read(self) -> bytes | None:
        message: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self.receive(message.set_result)
        return await message

    def receive(self, take: Callable[[bytes | None], None]) -> None:
        assert self._take is None, "one at a time"
        self._take = take

    def send(self, message: bytes) -> None:
        assert self._status is None
        self._unsent.append(message)
        self._deliver()

    def send_and_receive(self, message: bytes, take: Callable[[bytes | None], None]) -> None:
        self.receive(take)
        self.send(message)

    @property
    def unsent(self) -> int:
        return max(len(self._unsent) - 1, 0)

    def finish(self, status: grpc.StatusCode, details: str = "") -> None:
        self._status = (status, details)
        self._deliver()

    def peer(self) -> str:
        return "a test"


async def settle() -> None:
    """Let the event loop do all that it can do now."""
    for _ in range(50):
        await asyncio.sleep(0)


class Learner:
    """A service with one lane, without a server."""

    def __init__(self, max_message_rate: int = 0) -> None:
        self.slots = Slots(CAPACITY)
        self.requests: list[Request] = []
        self.handed_over: list[int] = []
        """How many requests there were at each time."""
        self.dropped: list[list[int]] = []
        self.failures: list[BaseException] = []
        self.hand_over: Callable[[], object] = lambda: self.handed_over.append(len(self.requests))
        self.drop: Callable[[np.ndarray], object] = lambda slots: self.dropped.append(slots.tolist())
        self.service = InferenceService(
            lease_seconds=60.0, on_failure=self.failures.append, max_message_rate=max_message_rate
        )
        lane = Lane(
            spec=SPEC,
            slots=self.slots,
            max_rows=CAPACITY,
            submit=self.requests.append,
            hand_over=lambda: self.hand_over(),
            version=lambda: 7,
            drop=lambda slots, reason: self.drop(slots),
        )
        self.service.open_lanes({pb.TRAIN: lane})

    async def answer(self, index: int) -> None:
        answer(self.requests[index])
        await settle()


def run(story: Callable[[Learner], Awaitable[None]]) -> None:
    async def body() -> None:
        await story(Learner())

    asyncio.run(body())


LATE = {
    "close": pb.Close(),
    "close with an error": pb.Close(error="boom"),
    "an open": opening(),
    "a bad step": step(2, float("nan")),
    "a good step": step(2, 66),
    "the step in flight": step(1, 10),
    "no message": b"\xff",
}


@pytest.mark.parametrize("late", LATE.values(), ids=LATE.keys())
def test_what_a_superseded_stream_brings_has_no_effect(late: Any) -> None:
    async def story(learner: Learner) -> None:
        former = Call(learner.service)
        opened = await former.open()
        former.hold()
        await former.bring(step(1, 10))
        await learner.answer(0)  # The network holds it up, and so the news that the session moves.
        stream = Call(learner.service)
        assert (await stream.open(resume_token=opened.session_token)).resumed

        await former.bring(late)

        assert learner.service.statistics()["sessions"] == 1
        assert (len(learner.requests), learner.dropped) == (1, [])
        await stream.bring(step(1, 10))
        await stream.bring(step(2, 20))
        await learner.answer(1)
        assert stream.actions() == [(1, [10]), (2, [20])]
        former.let_flow()
        await former.task
        assert former.status == (
            grpc.StatusCode.UNAVAILABLE,
            "the session goes on in another stream",
        )
        await stream.bring(step(3, 30))
        await learner.answer(2)
        assert stream.actions()[2:] == [(3, [30])], "the former's end changes nothing either"
        await stream.bring(pb.Close())
        await stream.task
        assert learner.dropped == [[0]]
        assert sorted(learner.slots.lease(CAPACITY)) == list(range(CAPACITY)), "each slot is free, once"
        statistics = learner.service.statistics()
        assert [statistics[name] for name in ("sessions", "streams", "environments")] == [0, 0, 0]

    run(story)


@pytest.mark.parametrize("first", ["the session's stream", "the superseded one"])
def test_slots_are_released_once_whoever_closes_first(first: str) -> None:
    async def story(learner: Learner) -> None:
        former, stream = Call(learner.service), Call(learner.service)
        opened = await former.open(num_environments=2)
        former.hold()
        await former.bring(step(1, 10, 11))
        await learner.answer(0)
        await stream.open(num_environments=2, resume_token=opened.session_token)
        await stream.bring(step(1, 10, 11))
        await stream.bring(step(2, 20, 21))
        for call in (stream, former) if first == "the session's stream" else (former, stream):
            await call.bring(pb.Close())
        assert learner.dropped == [], "a step is not answered yet"
        await learner.answer(1)
        assert learner.dropped == [[0, 1]]
        former.let_flow()
        await asyncio.gather(former.task, stream.task)
        assert learner.dropped == [[0, 1]]
        assert sorted(learner.slots.lease(CAPACITY)) == list(range(CAPACITY))

    run(story)


def test_the_end_of_a_superseded_stream_starts_no_expiry() -> None:
    async def story(learner: Learner) -> None:
        former, stream = Call(learner.service), Call(learner.service)
        opened = await former.open()
        await stream.open(resume_token=opened.session_token)
        await former.task
        (lease,) = learner.service._leases._by_token.values()
        assert lease.expiry is None
        stream.task.cancel()
        await settle()
        assert lease.expiry is not None

    run(story)


def test_a_failure_while_answers_are_delivered_is_the_learners() -> None:
    """No stream is there to be told: without word of it, the learner would stand still in silence."""

    async def story(learner: Learner) -> None:
        call = Call(learner.service)
        await call.open()
        await call.bring(step(1, 10))
        await call.bring(pb.Close())
        learner.drop = lambda slots: 1 // 0
        await learner.answer(0)
        (failure,) = learner.failures
        assert isinstance(failure, ZeroDivisionError)

    run(story)


def test_steps_that_come_together_are_handed_over_together() -> None:
    async def story(learner: Learner) -> None:
        calls = [Call(learner.service) for _ in range(2)]
        for call in calls:
            await call.open()
        for call in calls:
            call.arrive(step(1, 10))
        assert learner.handed_over == []
        await settle()
        assert learner.handed_over == [2]
        await calls[0].bring(step(1, 10))  # sent again: there is nothing new
        assert learner.handed_over == [2]
        await learner.answer(0)
        await calls[0].bring(step(2, 20))
        assert learner.handed_over == [2, 3]

    run(story)


def test_who_sends_and_does_not_read_is_cut_off() -> None:
    async def story(learner: Learner) -> None:
        stream = Call(learner.service)
        await stream.open(num_environments=2)
        await stream.bring(step(1, 10, 11))
        stream.hold()
        await learner.answer(0)
        for _ in range(21):  # Twice the environments and 16 may wait; one is being written.
            assert learner.dropped == []
            await stream.bring(step(1, 10, 11))
        assert learner.dropped == [[0, 1]], "its reader has ended, and its lease with it"
        await stream.bring(step(1, 10, 11))
        stream.let_flow()
        await stream.task
        assert len(stream.sent) == 22, "nothing piles up meanwhile"
        assert stream.status == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "expected the answers to be read, found 20 unread",
        )

    run(story)


def test_who_says_that_it_will_say_no_more_is_still_answered() -> None:
    async def story(learner: Learner) -> None:
        stream = Call(learner.service)
        opened = await stream.open(num_environments=2)
        await stream.bring(step(1, 10, environments=[0]))
        await stream.bring(step(2, 20, environments=[1]))
        await stream.bring(None)
        await learner.answer(1)
        assert not stream.task.done()
        await learner.answer(0)
        await stream.task
        assert stream.actions() == [(2, [20]), (1, [10])]
        again = Call(learner.service)
        assert (await again.open(num_environments=2, resume_token=opened.session_token)).resumed

    run(story)


def test_who_resumes_and_says_no_more_waits_for_no_step_that_it_did_not_send() -> None:
    async def story(learner: Learner) -> None:
        former = Call(learner.service)
        opened = await former.open()
        await former.bring(step(1, 10))
        stream = Call(learner.service)
        assert (await stream.open(resume_token=opened.session_token)).resumed
        await stream.bring(None)
        await stream.task
        await learner.answer(0)
        again = Call(learner.service)
        assert (await again.open(resume_token=opened.session_token)).resumed
        await again.bring(step(1, 10))
        assert again.actions() == [(1, [10])], "the answer was kept"

    run(story)


def test_what_was_answered_before_a_close_is_sent_before_it() -> None:
    async def story(learner: Learner) -> None:
        stream = Call(learner.service)
        await stream.open()
        await stream.bring(step(1, 10))
        answer(learner.requests[0])  # And the loop has not yet gone round.
        assert stream.listens
        stream.arrive(pb.Close())
        await stream.task
        assert stream.actions() == [(1, [10])]
        assert learner.dropped == [[0]]

    run(story)


def test_an_answer_asks_for_no_message_before_its_time() -> None:
    async def story() -> None:
        learner = Learner(max_message_rate=2)
        stream = Call(learner.service)
        await stream.open()
        await stream.bring(step(1, 10))
        await learner.answer(0)
        assert stream.listens
        await stream.bring(step(1, 10))  # sent again, and so answered again
        assert stream.actions() == [(1, [10])] * 2
        assert not stream.listens

    asyncio.run(story())


def test_who_steps_all_environments_is_listened_to_again_once_it_is_answered() -> None:
    async def story(learner: Learner) -> None:
        stream = Call(learner.service)
        await stream.open(num_environments=2)
        stream.arrive(step(1, 10, 11))
        assert not stream.listens, "it has nothing to say"
        await settle()
        assert stream.listens, "it may close"
        await stream.bring(step(1, 10, 11))  # sent again, as after a resumption
        assert stream.listens, "it may close"
        await learner.answer(0)
        stream.arrive(step(2, 20, environments=[0]))
        assert stream.listens, "it may step the other one"
        await settle()
        await learner.answer(1)
        assert stream.actions() == [(1, [10, 11]), (2, [20])]

    run(story)


def test_an_ended_lease_is_dropped_after_its_last_step_is_recorded() -> None:
    async def story(learner: Learner) -> None:
        stream = Call(learner.service)
        await stream.open()
        events: list[str] = []

        def hand_over() -> None:
            (request,) = learner.requests
            answer(request)
            events.append("recorded")

        learner.hand_over = hand_over
        learner.drop = lambda slots: events.append("dropped")
        await settle()
        stream.arrive(step(1, 10))
        learner.service.end_streams(RunEnded("the run has ended"))
        await settle()
        assert events == ["recorded", "dropped"]

    run(story)


def test_what_is_answered_while_it_is_handed_over_is_sent_at_once() -> None:
    async def story(learner: Learner) -> None:
        streams = [Call(learner.service) for _ in range(2)]
        for stream in streams:
            await stream.open(num_environments=1)
        learner.hand_over = lambda: [answer(request) for request in learner.requests]
        for stream in streams:
            stream.arrive(step(1, 10))
        await settle()
        assert [stream.actions() for stream in streams] == [[(1, [10])], [(1, [10])]]

    run(story)


def test_a_failure_of_who_answers_at_once_is_the_learners() -> None:
    async def story(learner: Learner) -> None:
        stream = Call(learner.service)
        await stream.open()

        def fail() -> None:
            raise RuntimeError("boom")

        learner.hand_over = fail
        await stream.bring(step(1, 10))
        assert [str(failure) for failure in learner.failures] == ["boom"]

    run(story)
