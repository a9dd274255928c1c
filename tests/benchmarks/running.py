"""Benchmarks as their users run them: as processes that print JSON on the last line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

MACHINE = {
    "load_average", "cores", "cpu", "system", "python", "versions", "commit", "uncommitted_changes",
    "command",
}  # fmt: skip


def run(name: str, *options: str) -> dict[str, Any]:
    """The JSON object of `python -m benchmarks.NAME OPTIONS --json`."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *options, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *tables, last = done.stdout.splitlines()
    assert any(line.startswith("| ") for line in tables), done.stdout
    result: dict[str, Any] = json.loads(last)
    assert result["benchmark"] == name
    assert result["machine"].keys() == MACHINE
    assert result["windows"]
    for window in result["windows"].values():
        assert window["seconds"] > 0
        assert window["own_cpu_seconds"] > 0
        assert 0 <= window["foreign_cpu"] <= 1
    return result


def refused(name: str, *options: str) -> str:
    """What the benchmark says of options that it does not take."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr
