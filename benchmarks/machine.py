"""Where and with what a benchmark ran: recorded with every result."""

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

PACKAGES = (
    "seedbed",
    "numpy",
    "grpcio",
    "protobuf",
    "gymnasium",
    "tensorflow-cpu",
    "tensorflow",
    "keras",
)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def describe() -> dict[str, Any]:
    """The machine, the versions and the commit, as JSON values. The load is that of this moment: call it
    before anything is started."""
    return {
        "load_average": list(os.getloadavg()),
        "cores": cores(),
        "cpu": _cpu_model(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain")),
        "command": sys.argv,
    }


def _cpu_model() -> str:
    found = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.processor()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """What git says; None without git or outside a checkout."""
    command: Sequence[str] = ("git", "-C", str(ROOT), *arguments)
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
