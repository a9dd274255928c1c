"""The comparison as tables."""

from collections.abc import Sequence

from benchmarks import output
from benchmarks.peer_rows import Row, Spread, spread
from benchmarks.peer_settings import PEERS, WORKLOADS

TITLES = {"equal": "equal settings", "best": "each system at its own best settings"}

FIGURES = (
    ("trained / sampled", "trained_ratio"),
    ("CPU s / million", "cpu_seconds_per_million"),
    ("p50 ms", "wait_p50_ms"),
    ("p99 ms", "wait_p99_ms"),
    ("lag", "policy_lag"),
    ("MB", "memory_mb"),
    ("MB / min", "memory_mb_per_minute"),
    ("sent B / step", "wire_bytes_per_step"),
    ("loopback B / step", "loopback_bytes_per_step"),
    ("cold start s", "cold_start_seconds"),
    ("mean return", "mean_return"),
)


def tables(rows: Sequence[Row]) -> list[str]:
    """A table for each workload and kind of settings, times to thresholds, and what did not count."""
    parts = []
    for kind, words in TITLES.items():
        for workload, task in WORKLOADS.items():
            mine = [row for row in rows if row.workload == workload and row.kind == kind]
            if any(row.status != "skipped" for row in mine):
                parts += [f"{workload}, {words}: {task.title}", _speeds(mine), _thresholds(mine)]
    return [*parts, _not_counted(rows)]


def _speeds(rows: Sequence[Row]) -> str:
    headers = ("system", "transport", "repeats", "steps/s", *(header for header, _ in FIGURES))
    lines = []
    for peer in PEERS:
        mine = [row for row in rows if row.peer == peer and row.status != "skipped"]
        good = [row for row in mine if row.status == "ok"]
        if not mine:
            continue
        speed = spread(good, "steps_per_second")
        others = [spread(good, figure) for _, figure in FIGURES]
        lines.append(
            [
                f"{peer} {mine[-1].algorithm}",
                next((row.transport for row in mine if row.transport), None),
                f"{len(good)} of {len(mine)}",
                _with_quartiles(speed),
                *(found.median if found is not None else None for found in others),
            ]
        )
    return output.table(headers, lines)


def _thresholds(rows: Sequence[Row]) -> str:
    """Seconds and steps to the threshold, failures counted; empty where there is none."""
    lines = []
    for peer in PEERS:
        mine = [row for row in rows if row.peer == peer and row.status != "skipped"]
        tried = [row.threshold for row in mine if row.status == "ok" and row.threshold is not None]
        reached = sorted(one["seconds"] for one in tried if one["reached"])
        steps = sorted(one["steps"] for one in tried if one["reached"])
        if tried:
            lines.append(
                [
                    f"{peer} {mine[-1].algorithm}",
                    f"{len(reached)} of {len(tried)}",
                    _median_of_all(reached, len(tried)),
                    _median_of_all(steps, len(tried)),
                    ", ".join(map(output.text, reached)) or None,
                ]
            )
    headers = ("system", "reached", "seconds, median", "steps, median", "seconds of each")
    return output.table(headers, lines) if lines else ""


def _median_of_all(reached: Sequence[float], tried: int) -> float | None:
    """The median where a failure takes longer than all others; None where the middle one failed."""
    middle = (tried - 1) // 2
    return reached[middle] if middle < len(reached) else None


def _not_counted(rows: Sequence[Row]) -> str:
    """A line for each system and reason, and the last lines of what crashed."""
    lines: dict[str, None] = {}
    for row in rows:
        if row.status == "skipped":
            where = "" if row.reason.startswith(("-", "/")) else f" on {row.workload}"
            lines[f"SKIPPED {row.peer}{where}: {row.reason}"] = None
        elif row.status != "ok":
            name = f"{row.status.upper()} {row.workload} {row.kind} {row.peer} repeat {row.repeat}"
            lines[f"{name}: {row.reason}"] = None
    return "\n".join(lines)


def _with_quartiles(found: Spread | None) -> str | None:
    if found is None:
        return None
    median, low, high = map(output.text, found)
    return f"{median} [{low}, {high}]"
