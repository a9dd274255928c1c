"""The `seedbed` command in the tests' own process, which spares each run TensorFlow's import."""

import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import IO, Any, NamedTuple

from learner.__main__ import main


class Done(NamedTuple):
    """What came of a command."""

    status: int
    stdout: str
    stderr: str


def seedbed(*arguments: str) -> Done:
    """Run `seedbed` with these arguments."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with _captured(out, err), _logging_restored():
            try:
                status = main(arguments)
            except SystemExit as end:
                status = int(end.code or 0)
        return Done(status, _content(out), _content(err))


def read_json(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text())
    return values


def read_metrics(logdir: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    return [json.loads(line) for line in (logdir / "metrics.jsonl").read_text().splitlines()]


@contextmanager
def _captured(out: IO[str], err: IO[str]) -> Iterator[None]:
    """Send what this process and its children write to `out` and `err`."""
    with ExitStack() as stack:
        for number, file in ((1, out), (2, err)):
            saved = os.dup(number)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, number)
            os.dup2(file.fileno(), number)
        # Python's own streams may be pytest's, which do not go through these descriptors.
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(err))
        yield
        sys.stdout.flush()
        sys.stderr.flush()


@contextmanager
def _logging_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def _content(file: IO[str]) -> str:
    file.seek(0)
    return file.read()
