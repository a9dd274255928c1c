"""Actor processes on the learner's own machine: started, watched, ended with it."""

import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO

from learner import SET_HERE
from learner.config import TrainOptions
from learner.telemetry.statistics import Clock
from protos.errors import EnvironmentFailure, WorkerFailure
from protos.secrets import TOKEN_VARIABLE
from protos.words import plain

logger = logging.getLogger(__name__)

MAX_RESTARTS = 3
RESTART_WINDOW_SECONDS = 120.0
"""An actor that ends more often than that within this time will go on ending."""

ERROR = re.compile(r"[\w-]+: error: ")
"""How the line begins that a command of this project ends with, where it fails."""

READER_GRACE_SECONDS = 1.0
"""How long a process's last words may take after its end."""

MAX_LINE = 10_000
"""Most characters of a line that are handed on: more than an actor's own have, while an environment may
print for ever without ending one."""


def actor_command(*arguments: str) -> list[str]:
    """The command line of an actor process, in this interpreter."""
    return [sys.executable, "-m", "actor", *arguments]


def child_actor(server: str, env: str, environments: int, seed: int, *more: str) -> list[str]:
    """The command line of an actor that lives no longer than this process, whose learner is `server`."""
    return actor_command(
        f"--server={server}",
        f"--env={env}",
        f"--num-envs={environments}",
        f"--seed={seed}",
        f"--parent={os.getpid()}",
        *more,
    )


def children_of_run(options: TrainOptions, server: str, seed: Callable[[int], int]) -> list[list[str]]:
    """The command lines of a run's actors: those that train, and behind them the one that evaluates.

    Args:
        options: the run's.
        server: address of the learner.
        seed: of the environments of the actor with that index.
    """
    env, niceness = str(options.env), f"--niceness={options.actor_niceness}"
    own = [niceness, f"--num-threads={options.threads_per_actor}"]
    commands = [
        child_actor(server, env, options.envs_per_actor, seed(index), f"--name=local {index}", *own)
        for index in range(options.num_actors)
    ]
    if options.eval_interval:
        environments, its_seed = options.evaluation_environments, seed(options.num_actors)
        words = "--name=evaluation", "--mode=evaluate", niceness
        commands.append(child_actor(server, env, environments, its_seed, *words))
    return commands


def child_environment(environ: Mapping[str, str], token: str | None = None) -> dict[str, str]:
    """`environ` without what is for this process, its address on the network or its supervisor, and with
    the token for its own address: environment variables are private, unlike command lines."""
    own = ("SEEDBED_TLS_", TOKEN_VARIABLE, "SEEDBED_INTERRUPTED_")
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith(own) and name not in SET_HERE
    }
    return kept if token is None else {**kept, TOKEN_VARIABLE: token}


class Description:
    """The environment's spec as JSON, from a child process: the learner imports no environment."""

    def __init__(self, env: str, timeout_seconds: float = 120.0) -> None:
        self._env = env
        self._timeout_seconds = timeout_seconds
        self._process: subprocess.Popen[str] | None = None

    def text(self) -> str:
        """Start the child and wait for what it prints.

        Raises:
            EnvironmentFailure: the environment cannot be made; with the child's last words. The log has
                those before.
        """
        self._process = process = subprocess.Popen(
            actor_command("--env", self._env, "--describe"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=child_environment(os.environ),
            # Ctrl-C in a terminal is not the environment's failure.
            start_new_session=True,
        )
        with process:  # It closes the pipes, which `communicate` leaves open where it gives up.
            try:
                text, words = process.communicate(timeout=self._timeout_seconds)
            except subprocess.TimeoutExpired:
                raise EnvironmentFailure(
                    f"--env {self._env}: expected its specs within {self._timeout_seconds:g} s, "
                    "found nothing"
                ) from None
            finally:
                # What the environment has started may have outlived the child, and hold its pipes.
                end_group(process)
        if process.returncode != 0:
            *before, last = words.strip().splitlines() or [""]
            for line in before:
                logger.info("[environment] %s", line)
            raise EnvironmentFailure(
                f"--env {self._env} cannot be described (status {process.returncode}): "
                f"{last or 'no word'}"
            )
        return text

    def close(self) -> None:
        """End the child, if it runs. Any thread may call it. Idempotent."""
        if self._process is not None and self._process.poll() is None:
            end_group(self._process)
            self._process.wait()


class LocalActors:
    """Actor processes that live no longer than this one, and neither does what they start.

    One thread a process waits for its end, another hands its words on. A process that
    somebody else ended is started again, up to 3 times in 2 minutes; one that ends with an error is a
    failure of the learner, with the process's last words; several that end with the same ones are one
    failure. `_lock` guards the processes, the count of restarts and the last words.
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        *,
        start_thread: Callable[[str, Callable[[], None]], None],
        environ: Mapping[str, str] | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._commands = commands
        self._start_thread = start_thread
        self._environ = child_environment(os.environ) if environ is None else dict(environ)
        self._clock = clock
        self._processes: list[subprocess.Popen[str]] = []
        self._restarted = 0
        self._failures: set[str] = set()
        self._closing = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start all processes."""
        for index in range(len(self._commands)):
            with self._lock:
                self._processes.append(self._launch(index))
            self._start_thread(f"actor {index}", self._watcher(index))

    def close(self, grace_seconds: float = 5.0) -> None:
        """End all processes: politely, then by force. Idempotent."""
        with self._lock:
            self._closing = True
            processes = [process for process in self._processes if process.poll() is None]
        for process in processes:
            _signal(process, signal.SIGTERM)
            # A stopped process (SIGSTOP, Ctrl-Z) meets no other signal than these two.
            _signal(process, signal.SIGCONT)
        deadline = time.monotonic() + grace_seconds
        for process in processes:
            try:
                process.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                logger.warning("actor process %d does not end; killed", process.pid)
                _signal(process, signal.SIGKILL)
                process.wait()
            end_group(process)

    def statistics(self) -> Mapping[str, float]:
        with self._lock:
            alive = sum(process.poll() is None for process in self._processes)
            return {"processes": alive, "restarted": self._restarted}

    def _launch(self, index: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._commands[index],
            env=self._environ,
            stdin=subprocess.DEVNULL,
            # What environments print joins the actor's own words: standard output belongs to results.
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Ctrl-C in a terminal reaches the whole group; the learner ends its actors itself, after
            # they have answered.
            start_new_session=True,
        )

    def _watcher(self, index: int) -> Callable[[], None]:
        def watch() -> None:
            ends: deque[float] = deque()
            while self._watch_once(index, ends):
                pass

        return watch

    def _watch_once(self, index: int, ends: deque[float]) -> bool:
        """Follow one process to its end, and note when that was. True if it was started again."""
        process = self._processes[index]
        last_words: deque[str] = deque(maxlen=1)
        reader = threading.Thread(
            target=_hand_on,
            args=(index, process, last_words),
            name=f"words of actor {index}",
            daemon=True,
        )
        reader.start()
        code = process.wait()
        # What an environment started may still hold the pipe, which then never comes to its end.
        end_group(process)
        reader.join(READER_GRACE_SECONDS)
        words = "".join(last_words).strip() or "none"
        with self._lock:
            told = words in self._failures
            if ERROR.match(words) and not told and (self._closing or code <= 0):
                logger.info("[actor %d] %s", index, words)
            if self._closing or told:
                return False
            if code > 0:
                self._failures.add(words)
                raise WorkerFailure(f"it ended with status {code}; its last words: {words}")
            self._check_restarts(code, ends)
            logger.warning("actor %d ended (%s); started again", index, _end_text(code))
            self._processes[index] = self._launch(index)
            return True

    def _check_restarts(self, code: int, ends: deque[float]) -> None:
        now = self._clock()
        ends.append(now)
        while ends[0] < now - RESTART_WINDOW_SECONDS:
            ends.popleft()
        if len(ends) > MAX_RESTARTS:
            raise WorkerFailure(
                f"it ended {len(ends)} times within {RESTART_WINDOW_SECONDS:g} s, the last time "
                f"({_end_text(code)}): expected at most {MAX_RESTARTS} (is memory short? does the "
                "environment crash or exit?)"
            )
        self._restarted += 1


def _end_text(code: int) -> str:
    return f"signal {-code}" if code < 0 else "status 0"


def _hand_on(index: int, process: subprocess.Popen[str], last_words: deque[str]) -> None:
    """Log what the process says, line by line, and keep the last. Its error is what the learner ends
    with, and is not said twice."""
    assert process.stdout is not None
    with process.stdout:
        for line in map(plain, _lines(process.stdout)):
            if line.strip():
                last_words.append(line)
            if not ERROR.match(line):
                logger.info("[actor %d] %s", index, line.rstrip())


def _lines(words: IO[str]) -> Iterator[str]:
    """The lines; of one that is too long, its beginning."""
    whole = True
    while piece := words.readline(MAX_LINE):
        if whole:
            yield piece
        whole = piece.endswith("\n")


def end_group(process: subprocess.Popen[str]) -> None:
    """Kill what a process has left behind; right after its end, before its id is used again."""
    # Linux knows no such group where nothing is left; macOS permits no signal to what is just ending.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _signal(process: subprocess.Popen[str], number: int) -> None:
    if process.poll() is None:
        process.send_signal(number)
