"""The runner: coroutines for callers that are none, interrupted without being cancelled."""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator

import pytest

from actor.runner import HereRunner, Interrupted, Runner, ThreadRunner, make_runner
from tests.fakes import LogLines


@pytest.fixture(params=[HereRunner, ThreadRunner])
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    made: Runner = request.param()
    yield made
    made.finish(nothing())
    gc.collect()  # What was left open or never awaited shows as a warning, which is an error.


async def nothing() -> None:
    pass


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


class Waiting:
    """A coroutine that tells that it waits, and how it ended."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.then = then
        self.release: asyncio.Event
        self.end = "not ended"

    async def __call__(self) -> None:
        self.release = asyncio.Event()
        asyncio.get_running_loop().call_soon(self.then)
        try:
            await self.release.wait()
            self.end = "released"
        except asyncio.CancelledError:
            self.end = "cancelled"
            raise


def test_results_and_errors_come_through(runner: Runner) -> None:
    async def fail() -> None:
        raise ValueError("boom")

    assert [runner.run(double(number)) for number in range(3)] == [0, 2, 4]
    with pytest.raises(ValueError, match="boom"):
        runner.run(fail())
    assert runner.run(double(4)) == 8


def test_a_runtime_error_is_no_interruption(runner: Runner) -> None:
    async def fail() -> None:
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        runner.run(fail())


def test_interrupt_ends_the_waiting_and_leaves_the_coroutine_alone(runner: Runner) -> None:
    waiting = Waiting(then=lambda: threading.Thread(target=runner.interrupt).start())
    with pytest.raises(Interrupted):
        runner.run(waiting())
    assert waiting.end == "not ended"

    async def release() -> None:
        waiting.release.set()
        await asyncio.sleep(0)
        assert waiting.end == "released"

    runner.finish(release())


def test_after_an_interrupt_nothing_runs_but_the_last(runner: Runner) -> None:
    runner.interrupt()
    runner.interrupt()
    ran = []

    async def run(name: str) -> None:
        ran.append(name)

    for _ in range(2):
        with pytest.raises(Interrupted):
            runner.run(run("ordinary"))
    runner.finish(run("last"))
    assert ran == ["last"]


def test_an_interrupt_does_not_end_the_last_coroutine(runner: Runner) -> None:
    ran = []

    async def last() -> None:
        runner.interrupt()
        for _ in range(5):
            await asyncio.sleep(0)
        ran.append("last")

    runner.finish(last())
    assert ran == ["last"]


def test_finish_is_idempotent_and_ends_what_is_left(runner: Runner) -> None:
    waiting = Waiting(then=runner.interrupt)
    with pytest.raises(Interrupted):
        runner.run(waiting())
    runner.finish(nothing())
    assert waiting.end == "cancelled"
    runner.finish(nothing())
    runner.interrupt()
    with pytest.raises(RuntimeError, match=r"^the client is closed$"):
        runner.run(nothing())


def test_an_abandoned_coroutine_that_fails_is_not_complained_of(runner: Runner) -> None:
    async def fail() -> None:
        asyncio.get_running_loop().call_soon(runner.interrupt)
        await asyncio.sleep(0.001)
        raise ValueError("boom")

    async def wait() -> None:
        await asyncio.sleep(0.01)

    with LogLines("asyncio") as complaints:
        with pytest.raises(Interrupted):
            runner.run(fail())
        runner.finish(wait())
        gc.collect()
    assert complaints.lines() == []


def test_ctrl_c_leaves_a_runner_that_finishes() -> None:
    runner = HereRunner()

    def ctrl_c() -> None:
        raise KeyboardInterrupt

    waiting = Waiting(then=ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        runner.run(waiting())
    assert runner.run(double(2)) == 4
    runner.finish(nothing())
    assert waiting.end == "cancelled"


def test_the_callers_thread_is_used_where_it_is_free() -> None:
    runner = make_runner()
    assert isinstance(runner, HereRunner)

    async def thread() -> threading.Thread:
        return threading.current_thread()

    assert runner.run(thread()) is threading.current_thread()
    runner.finish(nothing())


def test_inside_a_running_loop_another_thread_is_used_and_ended() -> None:
    async def cell() -> None:
        before = threading.active_count()
        runner = make_runner()
        assert isinstance(runner, ThreadRunner)
        assert runner.run(double(3)) == 6
        runner.finish(nothing())
        assert threading.active_count() == before

    asyncio.run(cell())


def test_a_runner_of_this_thread_refuses_to_run_inside_a_loop() -> None:
    runner = HereRunner()
    ran = []

    async def run() -> None:
        ran.append(1)

    async def cell() -> None:
        with pytest.raises(RuntimeError, match="running"):
            runner.run(run())

    asyncio.run(cell())
    runner.run(nothing())
    assert ran == [], "what was refused does not run later"
    runner.finish(nothing())
