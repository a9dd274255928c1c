"""Local actors as small real processes: their words, their ends, and that none outlives the learner."""

import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from learner import local_actors
from learner.config import TrainOptions
from learner.local_actors import (
    LocalActors,
    actor_command,
    child_actor,
    child_environment,
    children_of_run,
)
from learner.threads import Threads
from protos.errors import WorkerFailure

LIMIT_SECONDS = 20.0

SAY = """import os, signal, sys
def say(*words): os.write(2, (" ".join(map(str, words)) + "\\n").encode())
"""
HOLD = "say('ready', os.getpid())\nwhile True: signal.pause()"
WAITS = SAY + HOLD
IGNORES = SAY + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + HOLD
ENDS_IN_ORDER = SAY + "signal.signal(signal.SIGTERM, lambda *_: (say('tidy'), sys.exit(0)))\n" + HOLD
KILLED = SAY + "say('ready', os.getpid()); os.kill(os.getpid(), signal.SIGKILL)"
FAILS = SAY + "say('Traceback: ...'); say('ValueError: no ROM'); sys.exit(3)"
SPEAKS = SAY + "say('the run has ended')\nwhile True: signal.pause()"


class Words(logging.Handler):
    """What the module logs, for a test to wait for."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: queue.Queue[str] = queue.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.put(record.getMessage())

    def next_with(self, text: str) -> str:
        """The next message that holds `text`; what comes before it is dropped."""
        while text not in (message := self._messages.get(timeout=LIMIT_SECONDS)):
            pass
        return message

    def so_far(self) -> list[str]:
        """All messages that nobody has taken."""
        return [self._messages.get_nowait() for _ in range(self._messages.qsize())]

    def next_pid(self) -> int:
        """Process id that the next process says to be ready with."""
        return int(self.next_with("ready").split()[-1])


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> Iterator[Words]:
    handler = Words()
    level = local_actors.logger.level
    local_actors.logger.addHandler(handler)
    local_actors.logger.setLevel(logging.INFO)
    yield handler
    local_actors.logger.removeHandler(handler)
    local_actors.logger.setLevel(level)


class Learner:
    """The part of a learner that starts actors."""

    def __init__(self) -> None:
        self.failed = threading.Event()
        self.threads = Threads(on_failure=self.failed.set)
        self._started: list[LocalActors] = []

    def start(self, *scripts: str, clock: Callable[[], float] = lambda: 0.0) -> LocalActors:
        actors = LocalActors(
            [[sys.executable, "-S", "-E", "-c", script] for script in scripts],
            start_thread=self.threads.start,
            clock=clock,
        )
        self._started.append(actors)
        actors.start()
        return actors

    def failure(self) -> str:
        """What the main thread is told, once there is a failure."""
        assert self.failed.wait(LIMIT_SECONDS)
        with pytest.raises(WorkerFailure) as raised:
            self.threads.raise_failure()
        return str(raised.value)

    def end(self) -> None:
        for actors in self._started:
            actors.close(grace_seconds=0.0)


@pytest.fixture
def learner() -> Iterator[Learner]:
    learner = Learner()
    yield learner
    learner.end()


def is_gone(pid: int) -> bool:
    """Whether the process has ended and was waited for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_words_are_handed_on_with_the_actors_number(learner: Learner, words: Words) -> None:
    learner.start(SPEAKS, WAITS)
    found = sorted([words.next_with("[actor"), words.next_with("[actor")])
    assert found[0] == "[actor 0] the run has ended"
    assert found[1].startswith("[actor 1] ready ")


def test_words_without_bounds_are_handed_on_in_bounds(learner: Learner, words: Words) -> None:
    learner.start(SAY + "say('x' * 5_000_000); say('no\\0NUL \\33[31mred\\33[0m'); " + HOLD)
    assert words.next_with("[actor 0]") == f"[actor 0] {'x' * local_actors.MAX_LINE}"
    assert words.next_with("[actor 0]") == "[actor 0] no\\x00NUL red"


def test_statistics_count_what_lives(learner: Learner, words: Words) -> None:
    actors = learner.start(WAITS, WAITS)
    for _ in range(2):
        words.next_pid()
    assert actors.statistics() == {"processes": 2, "restarted": 0}
    actors.close()
    assert actors.statistics() == {"processes": 0, "restarted": 0}


def test_error_of_an_actor_is_a_failure_with_its_last_words(learner: Learner) -> None:
    learner.start(FAILS)
    assert learner.failure() == (
        "actor 0 failed: WorkerFailure: it ended with status 3; its last words: ValueError: no ROM"
    )


REFUSED = SAY + "say('made'); say('seedbed-actor: error: no ROM'); sys.exit(1)"


def test_an_error_is_said_once_by_whom_it_ends(
    learner: Learner, words: Words, caplog: pytest.LogCaptureFixture
) -> None:
    learner.start(REFUSED, REFUSED, REFUSED)
    assert learner.failure().endswith(
        "it ended with status 1; its last words: seedbed-actor: error: no ROM"
    )
    assert learner.threads.join(LIMIT_SECONDS) == []
    assert sorted(words.so_far()) == [f"[actor {index}] made" for index in range(3)]
    assert "failed too" not in caplog.text


def test_an_error_while_actors_are_closed_is_in_the_log(learner: Learner, words: Words) -> None:
    script = "signal.signal(signal.SIGTERM, lambda *_: sys.exit('seedbed-actor: error: cannot close'))\n"
    actors = learner.start(SAY + script + HOLD)
    words.next_pid()
    actors.close(LIMIT_SECONDS)
    words.next_with("[actor 0] seedbed-actor: error: cannot close")


def test_words_that_are_no_text_are_handed_on_as_far_as_they_are(learner: Learner) -> None:
    learner.start(SAY + r"os.write(2, b'caf\xe9\n'); sys.exit(1)")
    assert learner.failure().endswith("its last words: caf�")


def test_last_words_are_one_line_that_is_not_empty(learner: Learner) -> None:
    learner.start(SAY + "[say('line', n) for n in range(1000)]; say(' '); sys.exit(1)")
    assert learner.failure().endswith("its last words: line 999")


def test_what_never_ends_a_line_is_handed_on_too(learner: Learner, words: Words) -> None:
    learner.start(SAY + f"os.write(1, b'.' * {2 * local_actors.MAX_LINE})\nwhile True: signal.pause()")
    assert words.next_with("[actor 0]") == f"[actor 0] {'.' * local_actors.MAX_LINE}"


def test_actor_that_ends_without_a_word_says_so(learner: Learner) -> None:
    learner.start("import sys; sys.exit(1)")
    assert learner.failure().endswith("it ended with status 1; its last words: none")


def test_actor_that_somebody_told_to_end_is_started_again(learner: Learner, words: Words) -> None:
    actors = learner.start(ENDS_IN_ORDER)
    first = words.next_pid()
    os.kill(first, signal.SIGTERM)
    assert words.next_with("started") == "actor 0 ended (status 0); started again"
    assert words.next_pid() != first
    assert actors.statistics() == {"processes": 1, "restarted": 1}
    learner.threads.raise_failure()


def test_killed_actor_is_started_again(learner: Learner, words: Words) -> None:
    actors = learner.start(WAITS)
    first = words.next_pid()
    os.kill(first, signal.SIGKILL)
    assert words.next_with("signal") == "actor 0 ended (signal 9); started again"
    second = words.next_pid()
    assert second != first
    assert actors.statistics() == {"processes": 1, "restarted": 1}
    actors.close()
    assert is_gone(second)
    learner.threads.raise_failure()


def test_actor_that_is_killed_again_and_again_is_a_failure(learner: Learner, words: Words) -> None:
    actors = learner.start(KILLED)
    assert learner.failure() == (
        "actor 0 failed: WorkerFailure: it ended 4 times within 120 s, the last time (signal 9): "
        "expected at most 3 (is memory short? does the environment crash or exit?)"
    )
    assert len([words.next_pid() for _ in range(4)]) == 4
    assert actors.statistics()["processes"] == 0


def test_restarts_are_counted_for_each_actor(learner: Learner, words: Words) -> None:
    actors = learner.start(WAITS, WAITS, WAITS)
    for _ in range(3):
        words.next_pid()
    for process in range(3):
        for _ in range(2):
            os.kill(actors._processes[process].pid, signal.SIGKILL)
            words.next_pid()
    assert actors.statistics() == {"processes": 3, "restarted": 6}
    learner.threads.raise_failure()


def test_restarts_of_long_ago_do_not_count(learner: Learner, words: Words) -> None:
    ticks = count(step=50)
    actors = learner.start(KILLED, clock=lambda: float(next(ticks)))
    for _ in range(9):
        words.next_pid()
    actors.close()
    learner.threads.raise_failure()
    assert actors.statistics()["restarted"] >= 8


def test_restart_waits_for_nothing_that_the_actor_left_behind(
    learner: Learner, words: Words, tmp_path: Path
) -> None:
    """An environment's own process may hold the actor's stderr open, and would live for ever."""
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    child = f"held = open({str(fifo)!r}, 'w'); import signal; signal.pause()"
    learner.start(
        SAY
        + f"import subprocess; subprocess.Popen([sys.executable, '-S', '-E', '-c', {child!r}])\n"
        + HOLD
    )
    first = words.next_pid()
    with fifo.open() as alive:  # once the actor's child has opened it, too
        os.kill(first, signal.SIGKILL)
        assert alive.read() == ""  # ends when the child has
    words.next_with("started again")


def test_close_lets_actors_end_in_order(learner: Learner, words: Words) -> None:
    actors = learner.start(ENDS_IN_ORDER)
    pid = words.next_pid()
    actors.close(LIMIT_SECONDS)
    assert is_gone(pid)
    words.next_with("tidy")
    assert learner.threads.join(LIMIT_SECONDS) == []
    learner.threads.raise_failure()


def test_close_ends_those_that_are_stopped_and_those_that_ignore_it(
    learner: Learner, words: Words
) -> None:
    actors = learner.start(WAITS, IGNORES, IGNORES, ENDS_IN_ORDER)
    pids = [words.next_pid() for _ in range(4)]
    os.kill(pids[0], signal.SIGSTOP)
    os.kill(pids[1], signal.SIGSTOP)
    actors.close(grace_seconds=0.1)
    assert all(is_gone(pid) for pid in pids)
    assert learner.threads.join(LIMIT_SECONDS) == []
    learner.threads.raise_failure()


def test_close_wakes_a_stopped_actor_to_end_in_order(learner: Learner, words: Words) -> None:
    actors = learner.start(ENDS_IN_ORDER)
    os.kill(words.next_pid(), signal.SIGSTOP)
    actors.close(LIMIT_SECONDS)
    words.next_with("tidy")


def test_close_names_whom_it_kills_and_is_idempotent(learner: Learner, words: Words) -> None:
    actors = learner.start(IGNORES)
    pid = words.next_pid()
    actors.close(grace_seconds=0.0)
    words.next_with(f"actor process {pid} does not end; killed")
    actors.close(grace_seconds=0.0)
    assert actors.statistics() == {"processes": 0, "restarted": 0}


def test_close_before_start_and_after_the_end() -> None:
    learner = Learner()
    actors = LocalActors([], start_thread=learner.threads.start)
    actors.close()
    actors = learner.start(WAITS)
    actors.close()
    assert learner.threads.join(LIMIT_SECONDS) == []
    actors.close()


def test_actors_do_not_share_the_terminals_group(learner: Learner, words: Words) -> None:
    learner.start(WAITS)
    pid = words.next_pid()
    assert os.getpgid(pid) == pid != os.getpgid(0)


def test_environ_reaches_the_actors(words: Words) -> None:
    threads = Threads(on_failure=lambda: None)
    script = SAY + "say(os.environ.get('MARK'), os.environ.get('HOME'))"
    actors = LocalActors(
        [[sys.executable, "-S", "-c", script]], start_thread=threads.start, environ={"MARK": "here"}
    )
    actors.start()
    words.next_with("[actor 0] here None")
    assert threads.join(LIMIT_SECONDS) == []


def test_actor_that_cannot_be_started_is_said_at_once() -> None:
    actors = LocalActors([["/no/such/program"]], start_thread=lambda name, target: None)
    with pytest.raises(FileNotFoundError):
        actors.start()
    actors.close()


def test_actor_command_runs_in_this_interpreter() -> None:
    assert actor_command("--env", "x") == [sys.executable, "-m", "actor", "--env", "x"]
    command = child_actor("unix:/s", "x", 2, 7, "--mode=evaluate")
    words = ["--server=unix:/s", "--env=x", "--num-envs=2", "--seed=7", f"--parent={os.getpid()}"]
    assert command == actor_command(*words, "--mode=evaluate")


def test_children_are_not_told_what_is_the_learners_own() -> None:
    own = {
        "SEEDBED_TLS_CERT": "tls.crt",
        "SEEDBED_TOKEN_FILE": "token",
        "SEEDBED_INTERRUPTED_STATUS": "143",
    }
    # A local actor that ended with that status would be one that failed.
    assert child_environment({**own, "HOME": "/tmp"}) == {"HOME": "/tmp"}
    assert child_environment(own, "local") == {"SEEDBED_TOKEN": "local"}


def test_the_learner_multiplies_with_one_thread_and_its_actors_as_they_like() -> None:
    report = """
import os, learner
from learner.local_actors import child_environment
print(os.environ["OPENBLAS_NUM_THREADS"], child_environment(os.environ).get("OPENBLAS_NUM_THREADS"))
"""

    def reported(**variables: str) -> list[str]:
        environ = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"} | variables
        command = [sys.executable, "-c", report]
        return subprocess.run(
            command, env=environ, capture_output=True, text=True, check=True
        ).stdout.split()

    assert reported() == ["1", "None"]
    assert reported(OPENBLAS_NUM_THREADS="3") == ["3", "3"], "what the user has set stays"


def test_a_run_has_actors_that_train_and_one_that_evaluates() -> None:
    options = TrainOptions(
        env="x", num_actors=2, envs_per_actor=3, threads_per_actor=2, eval_interval=100, eval_envs=4,
        stop_eval_return=1.0, actor_niceness=7,
    )  # fmt: skip
    assert children_of_run(options, "unix:/s", lambda index: 10 + index) == [
        child_actor("unix:/s", "x", 3, 10, "--name=local 0", "--niceness=7", "--num-threads=2"),
        child_actor("unix:/s", "x", 3, 11, "--name=local 1", "--niceness=7", "--num-threads=2"),
        child_actor("unix:/s", "x", 4, 12, "--name=evaluation", "--mode=evaluate", "--niceness=7"),
    ]
    alone = TrainOptions(env="x", num_actors=1)
    assert len(children_of_run(alone, "unix:/s", lambda index: index)) == 1
