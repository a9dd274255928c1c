"""Threads that step parts of an actor's environments, against a learner in this process."""

import itertools
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from actor.__main__ import main
from actor.config import ActorOptions
from actor.side_by_side import Making, Part, act_side_by_side, divided
from actor.stop_signals import StopSignals
from actor.vector import environment_seeds
from learner.serving.batcher import Request
from protos.errors import ConfigError, RunEnded
from protos.specs import from_spaces
from tests.actor.toys import Walk
from tests.fakes import PATIENCE_SECONDS, FakeLearner

WALK = from_spaces(Walk.observation_space, Walk.action_space)


def test_parts_differ_by_one_environment_at_most_and_share_no_seed() -> None:
    found = divided("me", 8, seed=3, num_threads=3)
    assert [part.num_envs for part in found] == [3, 3, 2]
    assert [part.first for part in found] == [True, False, False]
    assert [part.name for part in found] == ["me thread 0", "me thread 1", "me thread 2"]
    seeds = [seed for part in found for seed in environment_seeds(part.seed, part.num_envs)]
    assert len(set(seeds)) == 8


def test_a_single_part_is_acted_for_in_the_calling_thread_with_the_actors_own_seed() -> None:
    acted: list[tuple[Part, threading.Thread]] = []
    one = divided("me", 8, seed=3, num_threads=1)
    act_side_by_side(one, lambda part: acted.append((part, threading.current_thread())), lambda: None)
    assert acted == [(Part("me", 8, 3, first=True), threading.current_thread())]


def test_the_first_failure_ends_the_others_and_is_raised() -> None:
    over = threading.Event()
    ended: list[str] = []

    def act(part: Part) -> None:
        if part.name.endswith("1"):
            raise ZeroDivisionError("the wheel came off")
        assert over.wait(PATIENCE_SECONDS)
        ended.append(part.name)

    with pytest.raises(ZeroDivisionError, match="the wheel came off"):
        act_side_by_side(divided("t", 3, 1, 3), act, over.set)
    assert sorted(ended) == ["t thread 0", "t thread 2"]


def test_where_the_system_starts_no_more_threads_those_it_started_are_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over, started = threading.Event(), itertools.count()
    start = threading.Thread.start

    def start_two(thread: threading.Thread) -> None:
        if next(started) == 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_two)
    with pytest.raises(ConfigError) as refused:
        act_side_by_side(divided("t", 4, 1, 4), lambda part: assert_set(over), over.set)
    assert str(refused.value) == (
        "--num-threads: expected a number of threads that the system starts, found 4, of which it "
        "started 2 (can't start new thread)"
    )


def test_more_threads_than_environments_are_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        ActorOptions(env="x", num_envs=3, num_threads=4)
    assert str(refused.value) == (
        "--num-threads 4: expected at most one an environment, found --num-envs 3"
    )


def assert_set(event: threading.Event) -> None:
    assert event.wait(PATIENCE_SECONDS)


def test_a_wish_is_met_as_a_signal_is() -> None:
    called: list[str] = []
    with StopSignals() as stop:
        stop.on_stop(lambda: called.append("before"))
        thread = threading.Thread(target=stop.wish)
        thread.start()
        thread.join()
        assert stop.is_set()
        stop.wish()
    assert (called, stop.exit_status, stop.name) == (["before"], 0, "")


def test_a_signal_after_a_wish_begins_nothing_anew() -> None:
    called: list[str] = []
    before = set(threading.enumerate())
    with StopSignals() as stop:
        stop.on_stop(lambda: called.append("stop"))
        stop.wish()
        os.kill(os.getpid(), signal.SIGINT)
        assert (stop.name, stop.exit_status) == ("SIGINT", 130)
        timers = set(threading.enumerate()) - before
    assert called == ["stop"]
    (timer,) = timers
    assert isinstance(timer, threading.Timer)
    assert timer.finished.is_set(), "it ends no process any more"


def test_all_end_also_where_the_system_starts_no_thread_to_limit_that(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    called: list[str] = []
    with StopSignals() as stop:
        stop.on_stop(lambda: called.append("stop"))
        monkeypatch.setattr(threading.Thread, "start", refuse)
        stop.wish()
        monkeypatch.undo()
    assert called == ["stop"]
    assert "nothing limits the time that ending takes: can't start new thread" in caplog.text


MODULE = """
import os
import gymnasium

made = []

def make_env():
    made.append(None)
    os.chdir("elsewhere" if len(made) == 1 else ".")
    assert len(made) < 3, "all threads use one module"
    return gymnasium.make("CartPole-v1")
"""


def test_threads_share_the_file_that_an_environment_is_in_wherever_the_first_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shared.py").write_text(MODULE)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    arguments = "--env=shared.py:make_env --num-envs=3 --num-threads=3"
    assert main(arguments.split()) == 1
    assert "AssertionError: all threads use one module" in capsys.readouterr().err


def test_nobody_acts_before_all_environments_are_made() -> None:
    making, acted = Making(2), queue.SimpleQueue[bool]()
    threading.Thread(target=lambda: acted.put(making.wait_for_others())).start()
    assert acted.empty()
    assert making.wait_for_others()
    assert acted.get(timeout=PATIENCE_SECONDS)


def test_where_one_is_not_made_nobody_waits_for_it() -> None:
    making, acted = Making(2), queue.SimpleQueue[bool]()
    threading.Thread(target=lambda: acted.put(making.wait_for_others())).start()
    making.give_up()
    assert not acted.get(timeout=PATIENCE_SECONDS)
    assert not making.wait_for_others()


# The process ------------------------------------------------------------------------------------


class Gated(Walk):
    """The first one that is made waits in its first step, until somebody opens the gate."""

    gate: ClassVar[threading.Event]
    made: ClassVar["itertools.count[int]"]

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self._waits = next(self.made) == 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._waits:
            assert self.gate.wait(PATIENCE_SECONDS)
        return super().step(action)


class FailingOnce(Gated):
    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._waits:
            raise ZeroDivisionError("the wheel came off")
        return super().step(action)


@pytest.fixture
def learner() -> Iterator[FakeLearner]:
    Gated.gate, Gated.made = threading.Event(), itertools.count()
    with FakeLearner("127.0.0.1:0", spec=WALK) as learner:
        yield learner


def act(learner: FakeLearner, environment: str = "Gated") -> int:
    arguments = f"--server={learner.address} --num-envs=5 --num-threads=3 --name=me"
    return main([f"--env={__name__}:{environment}", *arguments.split()])


@contextmanager
def looked_at(learner: FakeLearner, look: Callable[[Request], None]) -> Iterator[None]:
    """Answer each step with zeros, after `look` has looked at it in a thread of its own."""
    requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()

    def body() -> None:
        while (request := requests.get()) is not None:
            look(request)
            request.reply(WALK.action.zeros(len(request.slots)), 7)

    learner.on_step = requests.put
    thread = threading.Thread(target=body)
    thread.start()
    try:
        yield
    finally:
        requests.put(None)
        thread.join()


def test_while_one_environment_waits_the_others_step(learner: FakeLearner) -> None:
    steps: dict[tuple[int, ...], int] = {}

    def look(request: Request) -> None:
        key = tuple(request.slots.tolist())
        steps[key] = steps.get(key, 0) + 1
        if len(steps) == 3 and sorted(steps.values())[1] >= 10:
            Gated.gate.set()
        if len(steps) == 3 and min(steps.values()) >= 10:
            learner.server.end_streams(RunEnded("that is all"))

    with looked_at(learner, look):
        assert act(learner) == 0
    assert sorted(len(slots) for slots in steps) == [1, 2, 2]
    assert sorted(slot for slots in steps for slot in slots) == [0, 1, 2, 3, 4]


def test_a_signal_ends_all_of_them(learner: FakeLearner) -> None:
    Gated.gate.set()
    seen: set[int] = set()
    sent = threading.Event()

    def look(request: Request) -> None:
        seen.update(request.slots.tolist())
        if len(seen) == 5 and not sent.is_set():
            sent.set()
            os.kill(os.getpid(), signal.SIGTERM)

    with looked_at(learner, look):
        assert act(learner) == 0
    assert sorted(slot for _ in range(3) for slot in learner.next_dropped()) == [0, 1, 2, 3, 4]


def test_a_failure_in_one_of_them_ends_all_with_its_error(
    learner: FakeLearner, capsys: pytest.CaptureFixture[str]
) -> None:
    Gated.gate.set()
    assert act(learner, "FailingOnce") == 1
    *_, last = capsys.readouterr().err.splitlines()
    assert last.endswith("failed in step(): ZeroDivisionError: the wheel came off")
    # One lease at least has ended: others may have had no time to begin theirs, or were cut off before
    # they heard of it, and leave it to expire.
    learner.next_dropped()
