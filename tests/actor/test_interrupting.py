"""`InferenceClient` interrupted, by Ctrl-C, signal handlers and threads; and inside notebooks."""

import asyncio
import gc
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actor import InferenceClient, Interrupted, RetryPolicy, restart, transition
from tests.fakes import ACTIONS, OBSERVATIONS, FakeLearner, answer


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
    """No thread of a client's outlives it; what else it forgot shows as a warning, which is an error."""
    yield
    gc.collect()
    assert "client" not in [thread.name for thread in threading.enumerate()]


def connect(address: str, **options: Any) -> InferenceClient:
    return InferenceClient(address, OBSERVATIONS, ACTIONS, **options)


def send_signals(met: threading.Event) -> None:
    """Send SIGUSR1 to the main thread until its handler sets `met`: a signal that comes just before a
    thread blocks is met only when it is free again."""

    def send() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        # Not more often than gRPC looks for them: each begins its waiting of 0.2 s anew.
        while not met.wait(0.5):
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
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Raises KeyboardInterrupt once where a client waits, as SIGINT does."""
    raised = threading.Event()

    def interrupt(*_: object) -> None:
        if not raised.is_set():
            raised.set()
            raise KeyboardInterrupt

    former = signal.signal(signal.SIGUSR1, interrupt)
    yield lambda: send_signals(raised)
    raised.set()
    signal.signal(signal.SIGUSR1, former)


def test_ctrl_c_in_act_leaves_a_client_that_closes(
    learner: FakeLearner, ctrl_c: Callable[[], None]
) -> None:
    client = connect(learner.address)
    learner.on_step = lambda request: (learner.requests.put(request), ctrl_c())
    with pytest.raises(KeyboardInterrupt), client:
        client.act(restart(np.float32([1, 0])))
    answer(learner.next_request())
    assert learner.next_dropped() == [0], "the learner was told"


def test_ctrl_c_while_the_learner_starts(address: str, ctrl_c: Callable[[], None]) -> None:
    with FakeLearner(address, starting=True) as learner:
        learner.on_offer = ctrl_c
        client = connect(address)
        with pytest.raises(KeyboardInterrupt), client:
            pass
        learner.server.open_lanes(learner.lanes)
        with connect(address) as other:
            assert other.act(restart(np.float32([1, 0]))) == 1


def test_ctrl_c_in_backoff(address: str, ctrl_c: Callable[[], None]) -> None:
    def draw() -> float:
        ctrl_c()
        return 1.0

    client = connect(address, retry=RetryPolicy(initial_seconds=600, max_seconds=600, random=draw))
    with pytest.raises(KeyboardInterrupt), client:
        pass


def test_after_ctrl_c_the_loop_may_be_run_again(
    learner: FakeLearner, ctrl_c: Callable[[], None]
) -> None:
    client = connect(learner.address)
    learner.on_step = lambda request: (learner.requests.put(request), ctrl_c())
    with client:
        with pytest.raises(KeyboardInterrupt):
            client.act(restart(np.float32([1, 0])))
        learner.on_step = answer
        # The first step was never answered: the learner would refuse another one in its session.
        assert client.act(restart(np.float32([2, 0]))) == 2
        assert client.act(transition(np.float32([3, 0]), 0, False, False)) == 3
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


def test_a_client_made_outside_a_loop_works_inside_one(learner: FakeLearner) -> None:
    async def cell(client: InferenceClient) -> None:
        assert client.act(restart(np.float32([1, 0]))) == 1

    with connect(learner.address) as client:
        asyncio.run(cell(client))
        assert client.act(transition(np.float32([2, 0]), 0, False, False)) == 2
