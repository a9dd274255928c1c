"""A lock that one process holds, and that the kernel releases with it."""

import errno
import fcntl
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from protos.errors import ConfigError

logger = logging.getLogger(__name__)


def this_process() -> str:
    """Who this is, as a lock that it holds says."""
    return f"{os.getpid()} on {socket.gethostname()}"


def lock_file(path: Path, refusal: Callable[[str], ConfigError]) -> BinaryIO:
    """The open file at `path` that holds the lock, until it is closed or this process ends, however.

    The file stays: one that was removed could be locked by two, each with its own.

    Args:
        path: made if need be; says who holds the lock.
        refusal: what to raise where another process holds it, made of who that is.

    Raises:
        ConfigError: by `refusal`.
        OSError: it cannot be written.
    """
    file = path.open("a+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        holder = file.read().decode(errors="replace").strip()
        file.close()
        raise refusal(holder or "unknown") from error
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
            file.close()
            raise
        logger.warning(
            "the file system of %s has no locks: make sure that no other learner uses it", path.parent
        )
    try:
        file.truncate(0)
        file.write(f"{this_process()}\n".encode())
        file.flush()
    except OSError:
        file.close()
        raise
    return file
