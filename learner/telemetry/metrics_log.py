"""metrics.jsonl: one JSON object a line, one line an interval, readable at any moment."""

import io
import json
import logging
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

TAIL_BYTES = 1 << 18
"""The last line and more: each is a few kilobytes."""


class MetricsLog:
    """Appends to a file of JSON lines, and goes on where a former process stopped.

    A full disk costs lines, never the run: it is warned of once, until writing works again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failing = False
        # Unbuffered: every line is in the file when `write` returns, and a failed write leaves
        # nothing behind that a later flush would try again.
        self._file = io.FileIO(path, "a+")
        _cut_torn_line(self._file, path)

    def write(self, values: Mapping[str, Any]) -> None:
        """Append one object; values that JSON cannot hold (NaN, infinity) become null."""
        line = json.dumps({name: plain(value) for name, value in values.items()}, allow_nan=False)
        try:
            self._append(line.encode() + b"\n")
        except OSError as error:
            if not self._failing:
                logger.error(
                    "%s cannot be written (%s): training goes on, but its metrics are being lost",
                    self._path,
                    error.strerror,
                )
            self._failing = True
            return
        if self._failing:
            logger.warning("%s can be written again", self._path)
            self._failing = False

    def close(self) -> None:
        """Idempotent."""
        self._file.close()

    def _append(self, line: bytes) -> None:
        end = self._file.seek(0, os.SEEK_END)
        try:
            written = 0
            while written < len(line):
                written += self._file.write(line[written:])
        except OSError:
            self._file.truncate(end)
            raise


def last_value(path: Path, name: str) -> float:
    """`name` in the last whole line of the file at `path`; 0 where there is none, or it is no number.

    Raises:
        OSError: the file is there, and cannot be read.
    """
    if not path.exists():
        return 0.0
    with path.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - TAIL_BYTES, 0))
        lines = file.read().splitlines()
    for line in reversed(lines):
        with suppress(ValueError):  # A line that is torn.
            values = json.loads(line)
            value = values.get(name) if isinstance(values, dict) else None
            return float(value) if isinstance(value, int | float) else 0.0
    return 0.0


def _cut_torn_line(file: io.FileIO, path: Path) -> None:
    size = file.seek(0, os.SEEK_END)
    end = size
    while end > 0:
        start = max(end - 4096, 0)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        end = start + newline + 1 if newline >= 0 else start
        if newline >= 0:
            break
    if end < size:
        logger.warning("%s ended in the middle of a line, which is dropped", path)
        file.truncate(end)


def plain(value: Any) -> Any:
    """A number, text or None as JSON can hold it: what is not finite becomes None."""
    if isinstance(value, bool | str) or value is None:
        return value
    number = value.item() if hasattr(value, "item") else value
    return number if math.isfinite(number) else None
