"""What the kernel says about a window of time: CPU seconds by process, memory, and who disturbed it."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

PROCESS_CLOCK = 2
"""Linux makes the clock id of a process's CPU time, to the nanosecond, of its id and this
(MAKE_PROCESS_CPUCLOCK with CPUCLOCK_SCHED in linux/posix-timers.h)."""

QUIET = 0.05
"""More foreign CPU time than this part of the machine's spoils a measurement."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What one or several windows of time cost, and how much of the machine was not this run's."""

    seconds: float
    cpu_seconds: Mapping[str, float]
    """of the watched processes, by name"""
    own_cpu_seconds: float
    """of this process and everything it has started"""
    raw_foreign_cpu: float
    """part of all cores' time that other processes took; may come out below 0, as the kernel counts the
    machine's time in ticks, a process's exactly"""
    steal: float
    """part of all cores' time that the hypervisor gave to others, 0 to 1"""

    @property
    def foreign_cpu(self) -> float:
        """Part of all cores' time that other processes took, 0 to 1."""
        return max(self.raw_foreign_cpu, 0.0)

    @property
    def quiet(self) -> bool:
        """Whether these numbers may be trusted."""
        return self.foreign_cpu + self.steal <= QUIET

    def disturbance(self) -> dict[str, Any]:
        """What a result in JSON has of it."""
        return {
            "seconds": self.seconds,
            "own_cpu_seconds": self.own_cpu_seconds,
            "foreign_cpu": self.foreign_cpu,
            "steal": self.steal,
            "quiet": self.quiet,
        }


@dataclass(frozen=True, kw_only=True)
class Window(Usage):
    """A single window."""

    began: float
    """of `time.monotonic`"""

    @property
    def ended(self) -> float:
        return self.began + self.seconds


class _Snapshot(NamedTuple):
    time: float
    cpu: Mapping[str, float]
    own: float
    busy: float
    steal: float


class Meter:
    """Measures one window: make it at the window's beginning, `stop` it at the end.

    Args:
        processes: ids of the processes to watch, by name; several of one name are added up. They must
            live until `stop`.
    """

    def __init__(self, processes: Mapping[str, Sequence[int]]) -> None:
        self._processes = processes
        self._began = self._look()

    def stop(self) -> Window:
        """The window that ends now."""
        began, ended = self._began, self._look()
        seconds = ended.time - began.time
        own = ended.own - began.own
        machine = seconds * (os.cpu_count() or 1)
        return Window(
            began=began.time,
            seconds=seconds,
            cpu_seconds={name: ended.cpu[name] - began.cpu[name] for name in ended.cpu},
            own_cpu_seconds=own,
            raw_foreign_cpu=(ended.busy - began.busy - own) / machine,
            steal=(ended.steal - began.steal) / machine,
        )

    def _look(self) -> _Snapshot:
        busy, steal = machine_cpu_seconds()
        return _Snapshot(
            time=time.monotonic(),
            cpu={name: sum(map(cpu_seconds, pids)) for name, pids in self._processes.items()},
            own=tree_cpu_seconds(os.getpid()),
            busy=busy,
            steal=steal,
        )


def together(windows: Sequence[Window]) -> Usage:
    """All of the windows, without what was between them. They must have watched the same names."""
    seconds = sum(window.seconds for window in windows)
    return Usage(
        seconds=seconds,
        cpu_seconds={
            name: sum(window.cpu_seconds[name] for window in windows) for name in windows[0].cpu_seconds
        },
        own_cpu_seconds=sum(window.own_cpu_seconds for window in windows),
        # Below 0 or not: so that what the ticks of one window have too much, another's have too little.
        raw_foreign_cpu=sum(window.raw_foreign_cpu * window.seconds for window in windows) / seconds,
        steal=sum(window.steal * window.seconds for window in windows) / seconds,
    )


def cpu_seconds(pid: int) -> float:
    """CPU seconds that all threads of the process have had, those that have ended included."""
    return time.clock_gettime(~pid << 3 | PROCESS_CLOCK)


def thread_cpu_seconds(native_id: int) -> float:
    """CPU seconds that a thread of this process has had."""
    return int(Path(f"/proc/self/task/{native_id}/schedstat").read_text().split()[0]) / 1e9


def resident_bytes(pid: int) -> int:
    """Bytes that the process has in memory now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def tree_cpu_seconds(root: int) -> float:
    """CPU seconds of the process, of its living descendants, and of those that were waited for."""
    processes = _read_processes()
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in processes.items():
        children.setdefault(parent, []).append(pid)
    total, family = 0.0, [root]
    while family:
        pid = family.pop()
        total += processes[pid][1] if pid in processes else 0.0
        family.extend(children.get(pid, ()))
    return total


def machine_cpu_seconds() -> tuple[float, float]:
    """Seconds since boot that all cores together worked, and that the hypervisor withheld."""
    user, nice, system, _, _, irq, softirq, steal = _fields(
        Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return user + nice + system + irq + softirq, steal


def percentiles(seconds: np.ndarray) -> dict[str, float | None]:
    """The 50th, 95th and 99th percentile in milliseconds; None of nothing."""
    if not len(seconds):
        return dict.fromkeys(("p50", "p95", "p99"))
    values = np.percentile(seconds, (50, 95, 99)) * 1e3
    return dict(zip(("p50", "p95", "p99"), values.tolist(), strict=True))


def _read_processes() -> dict[int, tuple[int, float]]:
    """Parent and CPU seconds, waited-for children's included, of every process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                # The name in parentheses may hold anything, even a parenthesis.
                text = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            found[int(entry.name)] = (int(text[1]), sum(_fields(text[11:15])))
    return found


def _fields(ticks: Sequence[str]) -> list[float]:
    return [int(tick) / TICKS_PER_SECOND for tick in ticks]
