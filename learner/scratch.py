"""Folders for what a process needs while it lives: its own actors' socket, the runs of its trials."""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from learner.telemetry.file_lock import lock_file
from protos.errors import ConfigError

PREFIX = "seedbed-"
LOCK = ".scratch-lock"
"""Whoever has made the folder holds it, as long as it lives. A folder without it is none of these."""


@contextmanager
def scratch_folder() -> Iterator[str]:
    """A new folder, of the owner alone, that goes with the block.

    A process that was killed leaves its folder behind; the next one of its user removes it.

    Raises:
        OSError: it cannot be made.
    """
    _remove_left(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        # Locked before it has the name that others look for.
        unnamed = Path(folder) / f"{LOCK}.new"
        with closing(lock_file(unnamed, ConfigError)):
            unnamed.rename(Path(folder) / LOCK)
            yield folder


def _remove_left(where: Path) -> None:
    for folder in where.glob(f"{PREFIX}*"):
        # Whatever is in the way, it is not this process's: it stays.
        with suppress(OSError):
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
                _remove_if_left(folder)


def _remove_if_left(folder: Path) -> None:
    """Raises OSError where the folder has no lock, or its maker lives."""
    with (folder / LOCK).open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
