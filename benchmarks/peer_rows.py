"""Rows of the comparison: what each run came to, whether it counts, and what all repeats say."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from benchmarks.measure import QUIET, Window
from benchmarks.peer_drivers.settings import Settings, expected_parameters, second_biases
from benchmarks.peer_run import WATCHING, Observed
from benchmarks.peer_watch import rates

Status = Literal["ok", "void", "crashed", "skipped"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run."""

    workload: str
    kind: str
    """"equal" or "best" """
    peer: str
    repeat: int
    algorithm: str = ""
    status: Status = "ok"
    reason: str = ""
    """why it does not count; of a crash, the last lines of its output"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    load_average: float | None = None
    """of the minute before the run"""
    figures: Mapping[str, float | None] = field(default_factory=dict)
    threshold: Mapping[str, Any] | None = None
    transport: str = ""

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.workload, self.kind, self.peer, self.repeat


def row_of(row: Row, settings: Settings, observed: Observed) -> Row:
    """`row` with what was observed, void where that must not count."""
    watch, window = observed.watch, observed.window
    found = rates(watch, settings.environments * settings.unroll_length + settings.batch_steps)
    spent = window.own_cpu_seconds - window.cpu_seconds[WATCHING]
    timed = watch.threshold is not None
    disturbed = max(_disturbance(window), _disturbance(observed.whole) if timed else 0.0)
    figures = {
        **found._asdict(),
        "cpu_seconds_per_million": _per(1e6 * spent / window.seconds, found.steps_per_second),
        "memory_mb": observed.memory[-1][1] / 1e6,
        "memory_mb_per_minute": memory_slope(observed.memory),
        "loopback_bytes_per_step": _per(
            observed.loopback_bytes / window.seconds, found.steps_per_second
        ),
        "cold_start_seconds": watch.cold_start_seconds,
        "foreign_cpu": window.foreign_cpu,
        "steal": window.steal,
        "disturbed": disturbed,
        "parameters": observed.said.get("parameters"),
    }
    reasons = void_reasons(found.trained_ratio, found.valid, disturbed)
    if row.kind == "equal":
        reasons += wrong_network(settings, figures["parameters"])
    return replace(
        row,
        status="void" if reasons else "ok",
        reason="; ".join(reasons),
        figures=figures,
        threshold=watch.threshold._asdict() if watch.threshold is not None else None,
        transport=observed.said.get("transport", ""),
    )


def void_reasons(trained_ratio: float, valid: bool, disturbed: float) -> list[str]:
    """Why a run's figures must not be used."""
    reasons = []
    if not valid:
        reasons.append(f"trained / sampled is {trained_ratio:.2f}, expected 0.95 to 1.05")
    if disturbed > QUIET:
        reasons.append(
            f"others took {100 * disturbed:.0f} % of the machine, expected at most {100 * QUIET:.0f} %"
        )
    return reasons


def wrong_network(settings: Settings, found: float | None) -> list[str]:
    """A complaint about a network of another size than agreed; a system that does not tell is trusted
    (seedbed's own is checked by a test)."""
    expected = expected_parameters(settings)
    allowed = (expected, expected + second_biases(settings))
    if found is None or found in allowed:
        return []
    return [f"its network has {found:,.0f} parameters, expected {' or '.join(map(str, allowed))}"]


def memory_slope(samples: Sequence[tuple[float, int]]) -> float | None:
    """MB a minute, by least squares over (seconds, bytes); None of fewer than three."""
    if len(samples) < 3:
        return None
    times, sizes = np.array(samples, float).T
    return float(np.polyfit((times - times[0]) / 60, sizes / 1e6, 1)[0])


class Spread(NamedTuple):
    """Several repeats of one figure."""

    median: float
    low: float
    """first quartile"""
    high: float
    """third quartile"""


def spread(rows: Sequence[Row], figure: str) -> Spread | None:
    """Median and quartiles of a figure over the rows that have it; None if none has."""
    values = [row.figures[figure] for row in rows if row.figures.get(figure) is not None]
    if not values:
        return None
    low, median, high = np.percentile(np.array(values, float), (25, 50, 75)).tolist()
    return Spread(median, low, high)


class RowFile:
    """Rows on disk, one JSON object a line, written as they come.

    A row that counts is not run again; one that was void, crashed or skipped is, and replaces the old
    one.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._rows: dict[tuple[str, str, str, int], Row] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                row = Row(**json.loads(line))
                self._rows[row.key] = row

    @property
    def rows(self) -> list[Row]:
        return list(self._rows.values())

    def has(self, key: tuple[str, str, str, int]) -> bool:
        """Whether this run counts already."""
        return key in self._rows and self._rows[key].status == "ok"

    def add(self, row: Row) -> None:
        self._rows.pop(row.key, None)
        self._rows[row.key] = row
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(row), allow_nan=False) + "\n")


def _disturbance(window: Window) -> float:
    return window.foreign_cpu + window.steal


def _per(total: float, rate: float) -> float | None:
    return total / rate if rate else None
