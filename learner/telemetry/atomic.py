"""Files that are either the old one or the new one, whatever happens in between."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

TEMPORARY_SUFFIX = ".tmp"
"""Ends the names of files that were not finished. They begin with a dot."""


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the name `path` once the block ends without an error.

    Both the contents and the name are on the disk then (fsync), so that a power cut leaves the old
    file or the new one.

    Raises:
        OSError: it cannot be written; `path` is as it was, and nothing else is left behind.
    """
    temporary = path.with_name(f".{path.name}{TEMPORARY_SUFFIX}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Some network file systems cannot sync a folder; the rename itself has happened.
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
