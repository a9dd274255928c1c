"""One run of one system: its driver as a child process, watched from outside."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import processes
from benchmarks.machine import ROOT
from benchmarks.measure import Meter, Window
from benchmarks.peer_drivers import records
from benchmarks.peer_drivers.settings import MARK, Settings
from benchmarks.peer_watch import Limits, Look, Watch
from protos.errors import WorkerFailure
from protos.options import ENV_PREFIX

SILENCE_SECONDS = 180.0
"""Longest time to the first reading, and between two."""

POLL_SECONDS = 0.1
MEMORY_SECONDS = 5.0
"""Between two looks at memory, which cost some milliseconds a process."""

LAST_LINES = 12

WATCHING = "watching"
"""This process in a window: its CPU time is no part of the run's."""

ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(2**32 - 1),
    "MALLOC_TRIM_THRESHOLD_": str(2**32 - 1),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
}
"""Keeps freed memory: in a virtual machine, page faults cost up to a quarter of the time. The same for
all."""


class Observed(NamedTuple):
    """All that was seen of a run."""

    watch: Watch
    window: Window
    whole: Window
    """from the first step to the end of the run"""
    memory: Sequence[tuple[float, int]]
    """(time, bytes) in the window"""
    loopback_bytes: int
    """through the loopback interface in the window"""
    said: Mapping[str, Any]
    """what the driver told before it began: parameters, transport"""


class Driver:
    """A driver's process, and what it writes."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
        self._log, self._position, self._rest = log, 0, ""
        self._records = environ[records.FOLDER_VARIABLE]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                env=environ,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def messages(self) -> Iterator[dict[str, Any]]:
        """What it has said since the last call.

        Raises:
            WorkerFailure: it has ended.
        """
        ended = self.process.poll()
        with self._log.open(errors="replace") as file:
            file.seek(self._position)
            self._rest += file.read()
            self._position = file.tell()
        *whole, self._rest = self._rest.split("\n")
        for line in whole:
            if line.startswith(MARK):
                yield json.loads(line.removeprefix(MARK))
        if ended is not None:
            raise WorkerFailure(f"it ended with status {ended}:\n{self.last_lines()}")

    def last_lines(self) -> str:
        """The end of what it and the system have written."""
        lines = self._log.read_text(errors="replace").splitlines()
        words = [line for line in lines if line.strip() and not line.startswith(MARK)]
        return "\n".join(words[-LAST_LINES:])

    def close(self) -> None:
        """End it and everything that it has started."""
        self.process.kill()
        self.process.wait()
        processes.end_all(processes.with_variable(records.FOLDER_VARIABLE, self._records))


def observe(
    command: Sequence[str],
    limits: Limits,
    *,
    threads: int = 1,
    silence_seconds: float = SILENCE_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> Observed:
    """Run a driver until its window is over and its threshold decided.

    Raises:
        WorkerFailure: it ended by itself, or said nothing for too long; with its last words.
    """
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        folder = Path(name)
        with _started(command, folder, threads) as driver:
            return _follow(driver, folder / "records", limits, silence_seconds, sleep)


def environment(folder: Path, threads: int) -> dict[str, str]:
    """Variables of the driver and all below it: the same for every system."""
    # seedbed's own variables would win over the options that it is given.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    return {
        **inherited,
        **ALLOCATOR,
        records.FOLDER_VARIABLE: str(folder / "records"),
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        # What is left behind there goes with the folder; short, because sockets lie in it.
        "TMPDIR": str(folder / "t"),
        "RAY_TMPDIR": str(folder),
        "CUDA_VISIBLE_DEVICES": "",
    }


@contextmanager
def _started(command: Sequence[str], folder: Path, threads: int) -> Iterator[Driver]:
    (folder / "records").mkdir()
    (folder / "t").mkdir()
    driver = Driver(command, environment(folder, threads), folder / "log")
    try:
        yield driver
    finally:
        driver.close()


def _follow(
    driver: Driver,
    folder: Path,
    limits: Limits,
    silence_seconds: float,
    sleep: Callable[[float], None],
) -> Observed:
    watch = Watch(limits, time.monotonic())
    meters = _Meters()
    said: dict[str, Any] = {}
    heard = time.monotonic()
    while not watch.done:
        sleep(POLL_SECONDS)
        for message in driver.messages():
            heard = time.monotonic()
            if "trained" in message:
                watch.see(_look(message, records.read(folder)))
            else:
                said.update(message)
        now = time.monotonic()
        watch.count(now, records.read(folder))
        meters.follow(watch, now)
        if now - heard > silence_seconds:
            raise WorkerFailure(
                f"expected a reading within {silence_seconds:g} s, found none:\n{driver.last_lines()}"
            )
    assert meters.window is not None
    assert meters.whole is not None
    return Observed(
        watch, meters.window, meters.whole.stop(), meters.memory, meters.loopback_bytes, said
    )


def _look(message: Mapping[str, Any], totals: records.Totals) -> Look:
    """A reading, with the environments' steps of its own moment; the rest may be a moment newer."""
    return Look(
        message["time"],
        totals._replace(steps=message["sampled"]),
        message["trained"],
        message["updates"],
        message["policy_lag"],
    )


class _Meters:
    """CPU time, memory and loopback traffic of the window, and CPU time of the whole run."""

    def __init__(self) -> None:
        self.whole: Meter | None = None
        self.window: Window | None = None
        self.memory: list[tuple[float, int]] = []
        self.loopback_bytes = 0
        self._meter: Meter | None = None
        self._loopback_began = 0

    def follow(self, watch: Watch, now: float) -> None:
        """Begin and end with the window of `watch`; called after each look."""
        if self.whole is None and watch.stepping:
            self.whole = Meter({})
        if watch.opened is None or self.window is not None:
            return
        if self._meter is None:
            self._meter = Meter({WATCHING: [os.getpid()]})
            self._loopback_began = processes.loopback_bytes()
        if not self.memory or now - self.memory[-1][0] >= MEMORY_SECONDS:
            below = processes.descendants(os.getpid())
            self.memory.append((now, processes.memory_bytes(below)))
        if watch.closed is not None:
            self.window = self._meter.stop()
            self.loopback_bytes = processes.loopback_bytes() - self._loopback_began


def command(python: str, driver: str, settings: Settings) -> list[str]:
    """The command line of a driver in its own interpreter."""
    return [python, "-m", f"benchmarks.peer_drivers.{driver}", settings.to_json()]
