"""Processes of a benchmark: started fresh, spoken to over a pipe, ended with it."""

import multiprocessing
import os
import resource
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Literal

from protos.errors import WorkerFailure

DEADLINE_SECONDS = 120.0
"""Longest wait for a child's word; all of them speak within seconds unless they have failed."""

_context = multiprocessing.get_context("spawn")


class Child:
    """A process that runs `main(connection, *arguments)`."""

    def __init__(self, name: str, main: Callable[..., None], *arguments: Any) -> None:
        self.name = name
        self._connection, theirs = _context.Pipe()
        # Daemon: it ends with this process, however that ends.
        self._process = _context.Process(target=main, args=(theirs, *arguments), name=name, daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """0 if it came to its end, below 0 if a signal ended it; None while it lives."""
        return self._process.exitcode

    def ask(self, *message: Any) -> Any:
        """Send a message and return the answer."""
        self.tell(*message)
        return self.answer()

    def tell(self, *message: Any) -> None:
        """Send a message that has no answer, or whose answer is fetched later."""
        self._connection.send(message)

    def answer(self) -> Any:
        """The child's next word.

        Raises:
            WorkerFailure: it ended instead, or said nothing in time.
        """
        if not self._connection.poll(DEADLINE_SECONDS):
            raise WorkerFailure(
                f"{self.name}: expected a word within {DEADLINE_SECONDS:g} s, found none"
            )
        try:
            return self._connection.recv()
        except EOFError:
            self._process.join(DEADLINE_SECONDS)
            raise WorkerFailure(
                f"{self.name} ended with status {self.exit_status}; see its traceback above"
            ) from None

    def close(self) -> None:
        """Close its pipe, give it a moment to come to its end, and end it. Idempotent."""
        self._connection.close()
        self._process.join(5.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


@contextmanager
def child(name: str, main: Callable[..., None], *arguments: Any) -> Iterator[Child]:
    """A child that lives as long as the block."""
    process = Child(name, main, *arguments)
    try:
        yield process
    finally:
        process.close()


def shared_flag() -> Any:
    """A flag that all processes see, to hand to children; `flag.value` reads it in 0.1 us."""
    return _context.RawValue("b", 0)


def commands(connection: Connection) -> Iterator[tuple[Any, ...]]:
    """What the parent tells this child, until the parent closes the pipe or has ended."""
    while True:
        try:
            yield connection.recv()
        except (EOFError, OSError):
            return


def pin_to_one_core() -> None:
    """Keep all threads of this process, those to come included, on one core."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def raise_file_limit() -> None:
    """Let this process have as many connections as it may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextmanager
def address(transport: Literal["unix", "tcp"]) -> Iterator[str]:
    """Where a server may listen; with "tcp", on a port of the system's choice: see `with_port`."""
    if transport == "tcp":
        yield "127.0.0.1:0"
        return
    with tempfile.TemporaryDirectory(prefix="seedbed-") as folder:
        yield f"unix:{folder}/server.sock"


def with_port(listen: str, port: int) -> str:
    """The address to connect to, of a server that listens on `listen` and got `port`."""
    return f"{listen.removesuffix(':0')}:{port}" if listen.endswith(":0") else listen
