"""Connections of this process that gRPC does not let go of by itself."""

import os
import socket
import stat
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

Listener: TypeAlias = int | Path
"""TCP port or unix socket, where connections came in."""


def listener(address: str, port: int) -> Listener:
    """What `cut_off` knows an address by: HOST:PORT, of which `port` was bound, or unix:PATH."""
    return Path(address.removeprefix("unix:")) if address.startswith("unix:") else port


def cut_off(listeners: Collection[Listener]) -> int:
    """Break off all connections that came in there: on TCP, by that port of any of our addresses.

    What waits in one for room to write fails at once. Descriptors stay with their owner, to close.

    Returns:
        How many there were.
    """
    descriptors = [int(path.name) for path in Path("/dev/fd").iterdir()]
    return sum(_break_off(descriptor, listeners) for descriptor in descriptors)


def _break_off(descriptor: int, listeners: Collection[Listener]) -> bool:
    with suppress(OSError):  # Another thread may close it meanwhile; a copy stays what it is.
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            if _came_in_at(connection) in listeners:
                connection.shutdown(socket.SHUT_RDWR)
                return True
    return False


def _came_in_at(connection: socket.socket) -> Listener | None:
    name = connection.getsockname()
    if connection.family == socket.AF_UNIX:
        # A client's own end has no name.
        return Path(name) if isinstance(name, str) and name else None
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        return int(name[1])
    return None
