"""Whole trees of processes that are not ours: their memory, and their end."""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
"""of prctl(2)"""

CLEANER = "torch_shm_manager"
"""Removes what torch has left in shared memory, once its clients have ended."""


def adopt_orphans() -> None:
    """Let processes whose parent ends become this one's children.

    So they are counted as its own, and are found when all is to end.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Ids of all living processes below `root`, without it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # it has ended
                text = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                children.setdefault(int(text[1]), []).append(int(entry.name))
    found, family = [], [root]
    while family:
        for child in children.get(family.pop(), ()):
            found.append(child)
            family.append(child)
    return found


def with_variable(name: str, value: str) -> list[int]:
    """Ids of all processes that were started with this environment variable.

    It is handed on to everything that a process starts, so that nothing is missed that has left its
    family, and nothing else is found.
    """
    wanted = f"{name}={value}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # it has ended, or is another user's
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def memory_bytes(pids: Iterable[int]) -> int:
    """Memory of the processes together, pages that several share counted once (the proportional set)."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += 1024 * int(line.split()[1])
    return total


def end_all(
    pids: Iterable[int], *, grace_seconds: float = 3.0, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Kill the processes, and those of them that clean up only when they have had time for it."""
    pids = list(pids)
    for pid in pids:
        if _name(pid) != CLEANER:
            _kill(pid)
    waited = 0.0
    while waited < grace_seconds and any(map(lives, pids)):
        sleep(0.05)
        waited += 0.05
    for pid in pids:
        _kill(pid)


def loopback_bytes() -> int:
    """Bytes that have gone through the loopback interface since it came up: TCP between processes."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[0])
    return 0


def lives(pid: int) -> bool:
    """Whether a process runs still; one of this process's own that has ended is waited for."""
    with suppress(ChildProcessError):
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return False
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2]
    except OSError:
        return False
    return text.split()[0] != "Z"


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
