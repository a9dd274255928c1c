"""Results as Markdown tables, and as one JSON object on the last line."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.measure import QUIET, Usage
from learner.planning.tables import text

__all__ = ["show", "table", "text", "warning", "whole"]


def table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table; numbers with four significant digits or more."""
    lines = [headers, ["---"] * len(headers), *([text(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def warning(windows: Mapping[str, Usage]) -> str:
    """A line for each window that was disturbed too much to be trusted; empty if none was."""
    return "\n".join(
        f"NOT QUIET while {name} was measured: other processes took {100 * window.foreign_cpu:.0f} % of "
        f"the machine and the hypervisor {100 * window.steal:.0f} %, of at most {100 * QUIET:.0f} %: "
        "run it again"
        for name, window in windows.items()
        if not window.quiet
    )


def whole(
    name: str,
    machine: Mapping[str, Any],
    options: Any,
    result: Mapping[str, Any],
    windows: Mapping[str, Usage],
) -> dict[str, Any]:
    """The object for `show`: what was measured, and everything that it depends on."""
    return {
        "benchmark": name,
        "options": asdict(options),
        "machine": dict(machine),
        **result,
        "quiet": all(window.quiet for window in windows.values()),
        "windows": {key: window.disturbance() for key, window in windows.items()},
    }


def show(parts: Sequence[str], result: Mapping[str, Any], as_json: bool) -> None:
    """Print the parts that are not empty, and the whole `result` on the last line if asked to.

    Raises:
        ValueError: a number in it is not finite.
    """
    print("\n\n".join(part for part in parts if part))
    if as_json:
        print(json.dumps(result, allow_nan=False))
