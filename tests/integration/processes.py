"""Processes under test: started apart from the tests' own, and ended whatever happens."""

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent

PATIENCE_SECONDS = 60.0
"""Longest wait for what takes a few seconds on a quiet machine."""

Environ = Mapping[str, str]
NOTHING: Environ = {}

MARK = "INTEGRATION_TEST_MARK"
"""Environment variable by which a process and all its descendants are found again."""


def until(
    holds: Callable[[], Result | None], what: str | Callable[[], str], seconds: float = PATIENCE_SECONDS
) -> Result:
    """Wait for another process's state: the first true result of `holds`, asked every 20 ms.

    Raises:
        AssertionError: there was none in time; says `what` was waited for.
    """
    deadline = time.monotonic() + seconds
    while not (result := holds()):
        if time.monotonic() > deadline:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"expected within {seconds:g} s: {said}")
        time.sleep(0.02)
    return result


class Process:
    """A running command; its output goes to files, so that it never waits for a reader."""

    def __init__(
        self, command: Sequence[str], *, cwd: Path, environ: Mapping[str, str], folder: Path
    ) -> None:
        self.command = command
        self._out, self._err = folder / "stdout", folder / "stderr"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._popen = subprocess.Popen(
                command,
                cwd=cwd,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                # Ctrl-C in the tests' terminal is the tests' to hear.
                start_new_session=True,
            )
        self.pid = self._popen.pid

    @property
    def stdout(self) -> str:
        return self._out.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self._err.read_text(errors="replace")

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def says(self, pattern: str) -> re.Match[str]:
        """Wait for `pattern` in what it says on stderr."""

        def found() -> re.Match[str] | None:
            match = re.search(pattern, self.stderr)
            assert match or self.running, f"{self} ended without {pattern!r}:\n{self.stderr}"
            return match

        return until(found, lambda: f"{pattern!r} from {self}; found:\n{self.stderr}")

    def signal(self, number: int) -> None:
        self._popen.send_signal(number)

    def status(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Its exit status, which is waited for."""
        try:
            return self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"expected the end of {self}; it said:\n{self.stderr}") from None

    def end(self) -> None:
        """Kill its session."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()

    def __str__(self) -> str:
        return " ".join(self.command)


class Launcher:
    """Starts processes, and finds and ends them and all that they started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mark = uuid.uuid4().hex
        self._started: list[Process] = []

    def __call__(self, *command: str, cwd: Path = ROOT, environ: Environ = NOTHING) -> Process:
        folder = self._folder / f"process{len(self._started)}"
        folder.mkdir()
        mark = f"{self._mark}.{len(self._started)}"
        # Without PYTHONPATH and the like: as a user's shell, in which the package is installed.
        known = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        process = Process(command, cwd=cwd, environ={**known, **environ, MARK: mark}, folder=folder)
        self._started.append(process)
        return process

    def seedbed(self, *arguments: str, cwd: Path = ROOT, environ: Environ = NOTHING) -> Process:
        """The console script `seedbed`."""
        return self(str(BIN / "seedbed"), *arguments, cwd=cwd, environ=environ)

    def actor(self, *arguments: str, cwd: Path = ROOT, environ: Environ = NOTHING) -> Process:
        """The console script `seedbed-actor`."""
        return self(str(BIN / "seedbed-actor"), *arguments, cwd=cwd, environ=environ)

    def python(self, *arguments: str, cwd: Path = ROOT, environ: Environ = NOTHING) -> Process:
        """The tests' own interpreter."""
        return self(sys.executable, *arguments, cwd=cwd, environ=environ)

    def left_by(self, process: Process) -> list[int]:
        """Ids of living processes that `process` has started, directly or not."""
        mark = f"{MARK}={self._mark}.{self._started.index(process)}\0"
        return [pid for pid in _living(mark.encode()) if pid != process.pid]

    def end_all(self) -> None:
        for process in self._started:
            process.end()
        for pid in _living(f"{MARK}={self._mark}.".encode()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _living(mark: bytes) -> list[int]:
    """Ids of processes with `mark` in their environment; a zombie has none."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                environ = (entry / "environ").read_bytes()
            except OSError:  # it ended, or is another user's
                continue
            if mark in environ:
                found.append(int(entry.name))
    return found


def options(**values: Any) -> list[str]:
    """Command line options: `num_actors=2` as `--num-actors=2`."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]
