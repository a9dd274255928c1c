"""`python -m learner.planning.trial_process`: runs trainings one after the other, each for a while.

A line of JSON on standard input asks for each run, a line on standard output says what it reached. It
ends with its input, with SIGTERM, or with its parent.
"""

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from learner.planning.trials import from_json
from learner.run import run
from learner.telemetry.logs import configure_logging
from learner.telemetry.statistics import Clock
from protos.errors import SeedbedError

POLL_SECONDS = 0.05

START_SECONDS = 120.0
"""Longest time to the first update."""


def main() -> int:
    """Serve until the input ends; the process's exit status."""
    parent = int(sys.argv[1])
    console = Console(stderr=True)
    configure_logging(console, logging.WARNING)
    signal.signal(signal.SIGTERM, _end)
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as out:
        # Standard output belongs to the answers, whatever others print.
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        for line in sys.stdin:
            out.write(json.dumps(answer(json.loads(line), parent, console)) + "\n")
            out.flush()
    return 0


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def answer(request: Mapping[str, Any], parent: int, console: Console) -> dict[str, Any]:
    """Run what the request asks for, and say what it reached."""
    options = from_json(request["options"])
    assert options.logdir is not None
    window = Window(request["settle_seconds"], request["seconds"], cpu_clocks)
    watcher = Watcher(Path(options.logdir) / "metrics.jsonl", window, parent)
    thread = threading.Thread(target=watcher.watch, name="watcher", daemon=True)
    thread.start()
    error = ""
    try:
        run(options, console)
    except SeedbedError as failure:
        error = str(failure)
    watcher.close()
    thread.join()
    if window.result is not None:
        return window.result
    return {"seconds": 0.0, "rate": 0.0, "error": error or "it did not reach a steady state in time"}


@dataclass
class Window:
    """Looks at the lines of metrics.jsonl, and knows when enough has been seen.

    The window begins `settle_seconds` after the first update, and lasts `seconds`.
    """

    settle_seconds: float
    seconds: float
    clocks: Callable[[], Mapping[str, float] | None] = lambda: None
    """CPU seconds by whom; looked at when the window begins and ends"""
    result: dict[str, Any] | None = None
    _first: float | None = None
    _lines: list[Mapping[str, Any]] = field(default_factory=list)
    _clocks: Mapping[str, float] | None = None

    def add(self, line: Mapping[str, Any]) -> bool:
        """Take in the next line. True if the window is over."""
        if self._first is None:
            if line["policy_version"] > 0:
                self._first = line["seconds"]
            return False
        if not self._lines and line["seconds"] < self._first + self.settle_seconds:
            return False
        if not self._lines:
            self._clocks = self.clocks()
        self._lines.append(line)
        if line["seconds"] < self._lines[0]["seconds"] + self.seconds:
            return False
        self.result = self._reached()
        return True

    def _reached(self) -> dict[str, Any]:
        before, after = self._lines[0], self._lines[-1]
        elapsed = after["seconds"] - before["seconds"]
        steps = after["env_steps"] - before["env_steps"]
        batches = after["acting/batches"] - before["acting/batches"]
        began, ended = self._clocks, self.clocks()
        spent = {name: ended[name] - began[name] for name in ended} if began and ended else {}
        return {
            "seconds": elapsed,
            "rate": steps / elapsed,
            "batch": (after["acting/rows"] - before["acting/rows"]) / max(batches, 1),
            **{name: self._mean(name) for name in ("policy_lag", "actors_idle", "training_busy")},
            **{name: seconds / max(steps, 1) for name, seconds in spent.items()},
        }

    def _mean(self, name: str) -> float | None:
        known = [line[name] for line in self._lines[1:] if line[name] is not None]
        return sum(known) / len(known) if known else None


def cpu_clocks() -> dict[str, float] | None:
    """CPU seconds of this process, without those who only watch, and of its actors; None where the
    system does not tell."""
    if not sys.platform.startswith("linux"):
        return None
    watching = sum(
        time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        for thread in threading.enumerate()
        if thread.name in ("reporter", "watcher") and thread.ident is not None
    )
    return {
        "learner_cpu": time.process_time() - watching,
        "actor_cpu": sum(map(process_cpu_seconds, _children())),
    }


def process_cpu_seconds(pid: int) -> float:
    """CPU seconds that all threads of the process have had; 0 if it has ended."""
    # Linux makes the clock's id of the process's and the kind: MAKE_PROCESS_CPUCLOCK with
    # CPUCLOCK_SCHED in linux/posix-timers.h.
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0


def _children() -> list[int]:
    """Ids of this process's children, whichever thread has started them."""
    lists = [task / "children" for task in Path("/proc/self/task").iterdir()]
    return [int(pid) for each in lists if each.exists() for pid in each.read_text().split()]


class Watcher:
    """Follows a run's metrics.jsonl, and ends the run by a signal to this process once `window` is over,
    once it takes too long, or once the parent has ended. `watch` is a thread's body."""

    def __init__(
        self,
        path: Path,
        window: Window,
        parent: int,
        *,
        end_run: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGTERM),
        clock: Clock = time.monotonic,
        get_parent: Callable[[], int] = os.getppid,
    ) -> None:
        self._path = path
        self._window = window
        self._parent = parent
        self._end_run = end_run
        self._clock = clock
        self._get_parent = get_parent
        self._over = threading.Event()

    def watch(self) -> None:
        """Look until the window is over, or `close`."""
        limit = START_SECONDS + self._window.settle_seconds + self._window.seconds
        deadline = self._clock() + limit
        for line in self._lines():
            enough = line is not None and self._window.add(line)
            if enough or self._clock() > deadline or self._get_parent() != self._parent:
                self._end_run()
                return

    def close(self) -> None:
        """End the watching: the run is over. Idempotent."""
        self._over.set()

    def _lines(self) -> Iterator[Mapping[str, Any] | None]:
        """The lines as they come, and None whenever there is no new one."""
        seen = 0
        while not self._over.is_set():
            # A line is whole once its end is there.
            whole = self._path.read_text().split("\n")[:-1] if self._path.exists() else []
            yield from map(json.loads, whole[seen:])
            seen = len(whole)
            yield None
            self._over.wait(POLL_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
