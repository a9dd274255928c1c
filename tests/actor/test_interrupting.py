"""`InferenceClient` interrupted, by Ctrl-C, signal handlers and threads; and inside notebooks."""

import asyncio
import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actor import InferenceClient, Interrupted, RetryPolicy, restart, transition
from actor.runner import HereRunner
from tests.fakes import ACTIONS, OBSERVATIONS, FakeLearner, LogLines, answer


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"unix:{tmp_path}/s"


@pytest.fixture
def learner(address: str) -> Iterator[FakeLearner]:
    # Leases that outlive the test: what is dropped was closed.
    with FakeLearner(address, lease_seconds=3600) as fake:
        yield fake


@pytest.fixture(autouse=True)
def _nothing_left_open() -> Iterator[None]:
    """Sockets and loops that a client forgot show as warnings, which are errors, when collected."""
    yield
    gc.collect()


def connect(address: str, **options: Any) -> InferenceClient:
    return InferenceClient(address, OBSERVATIONS, ACTIONS, **options)


def send_signals(met: threading.Event) -> None:
    """Send SIGUSR1 to the main thread until its handler sets `met`: a signal that comes just before a
    thread blocks is met only when it is free again."""

    def send() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        while not met.wait(0.02):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    threading.Thread(target=send).start()


@pytest.fixture(params=["thread", "signal handler"])
def interrupting(
    request: pytest.FixtureRequest,
) -> Iterator[Callable[[InferenceClient], Callable[[], None]]]:
    """From a client to what interrupts it from there."""
    former = signal.getsignal(signal.SIGUSR1)
    met = threading.Event()

    def prepare(client: InferenceClient) -> Callable[[], None]:
        signal.signal(signal.SIGUSR1, lambda *_: (client.interrupt(), met.set()))
        if request.param == "thread":
            return lambda: threading.Thread(target=client.interrupt).start()
        return lambda: send_signals(met)

    yield prepare
    met.set()
    signal.signal(signal.SIGUSR1, former)


Interrupting = Callable[[InferenceClient], Callable[[], None]]


def test_interrupt_while_waiting_for_an_answer(learner: FakeLearner, interrupting: Interrupting) -> None:
    client = connect(learner.address)
    interrupt = interrupting(client)
    learner.on_step = lambda request: (learner.requests.put(request), interrupt())
    with client:
        for _ in range(2):
            with pytest.raises(Interrupted):
                client.act(restart(np.float32([1, 0])))
    answer(learner.next_request())
    assert learner.next_dropped() == [0], "the learner was told"
    assert learner.requests.empty()


def test_interrupt_while_the_learner_starts(address: str, interrupting: Interrupting) -> None:
    with FakeLearner(address, starting=True) as learner:
        client = connect(address)
        learner.on_offer = interrupting(client)
        with pytest.raises(Interrupted):
            client.act(restart(np.float32([1, 0])))
        client.close()
        learner.server.open_lanes(learner.lanes)
        with connect(address) as other:
            assert other.act(restart(np.float32([1, 0]))) == 1


def test_interrupt_in_backoff(address: str, interrupting: Interrupting) -> None:
    interrupt: list[Callable[[], None]] = []

    def draw() -> float:
        interrupt.pop()()
        return 1.0

    client = connect(address, retry=RetryPolicy(initial_seconds=600, max_seconds=600, random=draw))
    interrupt.append(interrupting(client))
    with pytest.raises(Interrupted), client:
        pass


def test_interrupt_between_steps(learner: FakeLearner) -> None:
    with connect(learner.address) as client:
        client.act(restart(np.float32([1, 0])))
        client.interrupt()
        client.interrupt()
        with pytest.raises(Interrupted):
            client.act(transition(np.float32([1, 0]), 0, False, False))
    assert learner.next_dropped() == [0]


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[InferenceClient], None]]:
    """Raises KeyboardInterrupt once where a client waits, as SIGINT does."""
    raised = threading.Event()

    def interrupt(*_: object) -> None:
        if not raised.is_set():
            raised.set()
            raise KeyboardInterrupt

    def act(client: InferenceClient) -> None:
        runner = client._runner
        if isinstance(runner, HereRunner):
            # Between two callbacks of the loop, where gRPC loses nothing.
            runner._loop.call_soon_threadsafe(interrupt)
        else:
            send_signals(raised)

    former = signal.signal(signal.SIGUSR1, interrupt)
    yield act
    raised.set()
    signal.signal(signal.SIGUSR1, former)


def test_ctrl_c_in_act_leaves_a_client_that_closes(
    learner: FakeLearner, ctrl_c: Callable[[InferenceClient], None]
) -> None:
    client = connect(learner.address)
    learner.on_step = lambda request: (learner.requests.put(request), ctrl_c(client))
    with LogLines("asyncio") as complaints:
        with pytest.raises(KeyboardInterrupt), client:
            client.act(restart(np.float32([1, 0])))
        gc.collect()
    answer(learner.next_request())
    assert learner.next_dropped() == [0], "the learner was told"
    assert [line for line in complaints.lines() if "PollerCompletionQueue" not in line] == []


@pytest.mark.parametrize("in_a_loop", [False, True])
def test_after_ctrl_c_the_loop_may_be_run_again(
    learner: FakeLearner, ctrl_c: Callable[[InferenceClient], None], in_a_loop: bool
) -> None:
    async def cell() -> None:
        play()

    def play() -> None:
        client = connect(learner.address)
        learner.on_step = lambda request: (learner.requests.put(request), ctrl_c(client))
        with client:
            with pytest.raises(KeyboardInterrupt):
                client.act(restart(np.float32([1, 0])))
            learner.on_step = answer
            # The first step was never answered: the learner would refuse another one in its session.
            assert client.act(restart(np.float32([2, 0]))) == 2
            assert client.act(transition(np.float32([3, 0]), 0, False, False)) == 3

    if in_a_loop:
        # Not asyncio.run, which meets Ctrl-C in a way of its own; notebooks do not.
        with closing(asyncio.new_event_loop()) as loop:
            loop.run_until_complete(cell())
    else:
        play()
    assert learner.next_dropped() == [1]
    answer(learner.next_request())
    assert learner.next_dropped() == [0]


# Notebooks --------------------------------------------------------------------------------------


def test_it_works_inside_a_running_event_loop(learner: FakeLearner) -> None:
    async def cell() -> None:
        with connect(learner.address) as client:
            assert client.act(restart(np.float32([1, 0]))) == 1
            assert client.act(transition(np.float32([2, 0]), 0, False, False)) == 2

    asyncio.run(cell())
    assert learner.next_dropped() == [0]
    assert "client" not in [thread.name for thread in threading.enumerate()]


def test_interrupt_inside_a_running_event_loop(learner: FakeLearner) -> None:
    async def cell() -> None:
        client = connect(learner.address)
        learner.on_step = lambda request: (learner.requests.put(request), client.interrupt())
        with client:
            for _ in range(2):
                with pytest.raises(Interrupted):
                    client.act(restart(np.float32([1, 0])))

    asyncio.run(cell())
    answer(learner.next_request())
    assert learner.next_dropped() == [0], "the learner was told"


def test_a_client_made_outside_a_loop_says_so_inside_one(learner: FakeLearner) -> None:
    async def cell(client: InferenceClient) -> None:
        with pytest.raises(RuntimeError, match="running"):
            client.act(restart(np.float32([1, 0])))

    with connect(learner.address) as client:
        asyncio.run(cell(client))
        assert client.act(restart(np.float32([1, 0]))) == 1
