"""How `InferenceClient` gets through what happens to the network and to the learner."""

import gc
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actor import Credentials, InferenceClient, RetryPolicy, TimeStep, restart, transition
from actor.waiting import Waiting
from learner.flags import LEASE_START
from learner.serving.batcher import Request
from protos import inference_pb2 as pb
from protos.errors import DeadlineExceeded, NotServing, RunEnded
from tests.fakes import ACTIONS, OBSERVATIONS, FakeLearner, LogLines, Proxy, answer, observation


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"unix:{tmp_path}/s"


@pytest.fixture
def learner() -> Iterator[FakeLearner]:
    with FakeLearner("127.0.0.1:0") as fake:
        yield fake


@pytest.fixture
def proxy(learner: FakeLearner) -> Iterator[Proxy]:
    with Proxy(learner.server.port) as relay:
        yield relay
    gc.collect()


def connect(address: str, draw: Callable[[], float] = lambda: 0.0, **options: Any) -> InferenceClient:
    """A client of 2 environments that tries again at once, unless `draw` says otherwise."""
    options.setdefault("retry", RetryPolicy(random=draw))
    return InferenceClient(address, OBSERVATIONS, ACTIONS, num_environments=2, **options)


def first(*numbers: float) -> TimeStep:
    return restart(observation(*numbers), len(numbers))


def later(*numbers: float) -> TimeStep:
    no = np.zeros(len(numbers), bool)
    return transition(observation(*numbers), np.ones(len(numbers)), no, no)


def test_it_waits_for_a_learner_that_is_not_there_yet(address: str) -> None:
    draws: list[float] = []
    learner = FakeLearner(address)

    def draw() -> float:
        draws.append(0.0)
        if len(draws) == 3:
            learner.__enter__()
        return 0.0

    with LogLines("actor.client") as log:
        with connect(address, draw) as client:
            assert client.act(first(1, 2)).tolist() == [1, 2]
        learner.__exit__()
    assert len(draws) == 3
    (line,) = log.lines()
    assert line.startswith(f"waiting for the learner at {address}: "), "said once, not at each attempt"
    assert "No such file" in line


def test_it_waits_for_room(learner: FakeLearner) -> None:
    with connect(learner.address), connect(learner.address), connect(learner.address) as last:
        fourth = connect(learner.address)
        fifth = connect(learner.address, lambda: last.close() or 0.0)
        with fourth, fifth:
            assert fifth.act(first(1, 2)).tolist() == [1, 2]


def test_it_gives_up_when_it_was_told_to(address: str) -> None:
    ticks = iter(range(1000))
    retry = RetryPolicy(give_up_seconds=5, clock=lambda: next(ticks), random=lambda: 0.0)
    with pytest.raises(NotServing, match=f"^no learner at {address} within 5 s: .*No such file"):
        connect(address, retry=retry).__enter__()
    assert next(ticks) == 7


def test_it_gives_up_when_there_is_nothing_left_to_wait_for(address: str) -> None:
    retry = RetryPolicy(give_up_when=lambda: True, random=lambda: 0.0)
    with pytest.raises(NotServing, match=f"^no learner at {address}: .*No such file"):
        connect(address, retry=retry).__enter__()


class Slow:
    """In the place of `actor.stream.Stream`: a learner that opens at once and answers late, or not at
    all. Time passes with each attempt."""

    now = 0.0
    late = 5
    opened = 0

    @classmethod
    def dial(cls, server: str, credentials: Credentials, waiting: Waiting) -> "Slow":
        return cls()

    def open(self, opening: pb.Open, timeout_seconds: float) -> pb.Opened:
        Slow.opened += 1
        Slow.now += 1.0
        if Slow.opened > Slow.late + 1:
            raise NotServing("gone")
        return pb.Opened(session_token=b"token")

    def exchange(self, step: pb.ClientMessage, timeout_seconds: float) -> pb.Actions:
        Slow.now += 120.0
        if Slow.opened <= Slow.late:
            raise DeadlineExceeded("expected an answer within 120 s")
        return pb.Actions(sequence=step.step.sequence, action=np.array([1, 2]).tobytes())

    def close(self, error: str) -> None: ...

    def cancel(self) -> None: ...


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> type[Slow]:
    monkeypatch.setattr("actor.client.Stream", Slow)
    for name in ("now", "opened", "late"):
        monkeypatch.setattr(Slow, name, getattr(Slow, name))
    return Slow


def patient(seconds: float) -> RetryPolicy:
    return RetryPolicy(give_up_seconds=seconds, clock=lambda: Slow.now, random=lambda: 0.0)


def test_a_learner_that_answers_late_is_not_gone(slow: type[Slow]) -> None:
    with connect("a learner", retry=patient(30)) as client:
        assert client.act(first(1, 2)).tolist() == [1, 2]
    assert slow.opened == 6
    assert slow.now > 5 * 120


def test_a_learner_that_answers_late_and_then_is_gone_is_given_up(slow: type[Slow]) -> None:
    slow.late = 2
    with connect("a learner", retry=patient(30)) as client:
        client.act(first(1, 2))
        slow.late = 1  # From the next opening on it is gone.
        began = slow.now
        client._stream.exchange = slow_answer
        with pytest.raises(NotServing, match=r"^no learner at a learner within 30 s: gone$"):
            client.act(later(3, 4))
    assert slow.now - began == 30 + 1


def slow_answer(step: pb.ClientMessage, timeout_seconds: float) -> pb.Actions:
    raise DeadlineExceeded("expected an answer within 120 s")


@pytest.mark.parametrize("break_", [Proxy.cut, Proxy.reset])
def test_a_stream_that_breaks_between_steps_is_resumed(
    learner: FakeLearner, proxy: Proxy, break_: Callable[[Proxy], None]
) -> None:
    requests: list[Request] = []
    learner.on_step = lambda request: (requests.append(request), answer(request))
    with connect(proxy.address) as client:
        for number in range(1, 6):
            step = first(1, 2) if number == 1 else later(number, number + 1)
            assert client.act(step)[0] == number
            break_(proxy)
    assert [request.flags.tolist()[0] for request in requests] == [pb.FIRST | LEASE_START, 0, 0, 0, 0]
    statistics = learner.server.statistics()
    assert statistics["count_sessions_begun"] == 1
    assert statistics["count_sessions_resumed"] == 4


@pytest.mark.parametrize("break_", [Proxy.cut, Proxy.reset])
def test_a_stream_that_breaks_in_a_step_is_resumed(
    learner: FakeLearner, proxy: Proxy, break_: Callable[[Proxy], None]
) -> None:
    def break_first(request: Request) -> None:
        learner.on_step = learner.requests.put
        learner.requests.put(request)
        break_(proxy)

    def answer_late() -> None:
        with LogLines("learner.serving") as log:
            ready.set()
            log.wait_for("resumes")
            answer(learner.next_request())
        learner.on_step = answer

    ready = threading.Event()
    learner.on_step = break_first
    thread = threading.Thread(target=answer_late)
    thread.start()
    ready.wait()
    with connect(proxy.address) as client:
        assert client.act(first(1, 2)).tolist() == [1, 2]
        thread.join()
        assert client.act(later(3, 4)).tolist() == [3, 4]
    assert learner.requests.empty(), "nothing reached the policy twice"


def test_an_answer_that_comes_while_the_session_resumes_is_taken_once(
    learner: FakeLearner, proxy: Proxy
) -> None:
    held: list[Request] = []

    def hold(request: Request) -> None:
        held.append(request)
        learner.on_step = answer
        proxy.cut()

    learner.on_step = hold
    learner.on_opened = lambda: answer(held.pop()) if held else None
    with connect(proxy.address) as client:
        assert client.act(first(1, 2)).tolist() == [1, 2]
        for number in range(3, 6):
            assert client.act(later(number, 0)).tolist() == [number, 0]


def test_an_answer_that_does_not_come_in_time_is_fetched_by_another_stream(
    learner: FakeLearner, proxy: Proxy
) -> None:
    def stall(request: Request) -> None:
        proxy.stall()
        learner.on_step = answer
        answer(request)

    learner.on_step = stall
    with LogLines("actor.client") as log, connect(proxy.address, answer_timeout_seconds=0.2) as client:
        assert client.act(first(1, 2)).tolist() == [1, 2]
        assert client.act(later(3, 4)).tolist() == [3, 4]
    assert log.lines() == ["lost the learner: expected an answer within 0.2 s"]
    assert proxy.accepted == 2


def test_a_restarted_learner_gets_a_new_lease_and_the_episode_goes_on(address: str) -> None:
    former, new = FakeLearner(address), FakeLearner(address)
    requests: list[Request] = []
    new.on_step = lambda request: (requests.append(request), answer(request))
    draws: list[float] = []

    def draw() -> float:
        draws.append(0.0)
        if len(draws) == 2:
            new.__enter__()
        return 0.0

    former.__enter__()
    with connect(address, draw) as client:
        assert client.act(first(1, 2)).tolist() == [1, 2]
        former.__exit__()
        assert client.act(later(3, 4)).tolist() == [3, 4]
        assert client.act(later(5, 6)).tolist() == [5, 6]
    new.__exit__()
    assert [request.flags.tolist() for request in requests] == [[LEASE_START] * 2, [0, 0]]


def test_a_learner_that_drains_and_comes_back_is_waited_for(address: str) -> None:
    former, new = FakeLearner(address), FakeLearner(address)

    def swap() -> float:
        former.__exit__()
        new.__enter__()
        return 0.0

    former.__enter__()
    with connect(address, swap) as client:
        client.act(first(1, 2))
        former.server.end_streams(NotServing("the learner ends, and may come back"))
        assert client.act(later(3, 4)).tolist() == [3, 4]
    new.__exit__()


def test_after_the_lease_a_new_one_begins_without_a_reset() -> None:
    with FakeLearner("127.0.0.1:0", lease_seconds=0.01) as learner, Proxy(learner.server.port) as proxy:
        requests: list[Request] = []
        learner.on_step = lambda request: (requests.append(request), answer(request))
        with connect(proxy.address) as client, LogLines("learner.serving") as log:
            client.act(first(1, 2))
            proxy.cut()
            log.wait_for("lease expired")
            assert client.act(later(3, 4)).tolist() == [3, 4]
        assert requests[1].flags.tolist() == [LEASE_START, LEASE_START]


def test_a_step_that_breaks_every_stream_is_given_up_in_time(address: str) -> None:
    ticks, requests = itertools.count(), []
    retry = RetryPolicy(give_up_seconds=5, clock=lambda: next(ticks), random=lambda: 0.0)

    def break_(request: Request) -> None:
        requests.append(request)
        raise NotServing("connecting again does not help")

    with FakeLearner(address, capacity=100) as learner, connect(address, retry=retry) as client:
        learner.on_step = break_
        with pytest.raises(NotServing, match=r"within 5 s: connecting again does not help$"):
            client.act(first(1, 2))
    # In the stream that `with` opened, in another at once, and in one for each of 5 ticks of the clock.
    assert len(requests) == 7


def test_the_end_of_a_run_is_heard_even_after_the_learner_is_gone(address: str) -> None:
    learner = FakeLearner(address)
    learner.__enter__()
    with connect(address) as client:
        client.act(first(1, 2))
        learner.server.end_streams(RunEnded("all done"))
        learner.__exit__()
        with pytest.raises(RunEnded, match=r"^all done$"):
            client.act(later(3, 4))
