"""seedbed, Sample Factory, RLlib and Stable-Baselines3 on the same tasks, under the same rules.

    python -m benchmarks.peers --sample-factory-python PATH --rllib-python PATH \\
        --stable-baselines3-python PATH [--workloads W1,W3] [--settings equal] [--json]

Each system is driven in its own interpreter, in a virtual environment of its own; what is not installed
is skipped and named. The environments are the same code for all and count steps, returns and waits
themselves. Repeats alternate between the systems. A row is void, and its figures are in no median, where
trained / sampled is not within 0.95 to 1.05 (and what the window is too short to tell), where others
took more than 5 % of the machine, or where the network has not the size agreed for equal settings.

With `--rows FILE` each row is kept as it comes; the same command again runs what is missing or was void.
"""

import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import machine, output, processes
from benchmarks.machine import ROOT
from benchmarks.peer_drivers.settings import Settings
from benchmarks.peer_rows import Row, RowFile, row_of
from benchmarks.peer_run import command, observe
from benchmarks.peer_settings import (
    ALWAYS_RECORDED,
    CANNOT,
    KINDS,
    PEERS,
    WORKLOADS,
    algorithm_of,
    in_turn,
    settings_for,
    wire_case,
)
from benchmarks.peer_tables import tables
from benchmarks.peer_watch import Limits
from benchmarks.wire import measure_case
from protos.errors import ConfigError, WorkerFailure
from protos.options import check_ranges, option, parse

WIRE_STEPS = 100
"""Steps whose bytes are counted: they hardly differ."""

PROBE = """
import importlib.metadata as m, json, sys
names = ((d.metadata["Name"] or "", d.version) for d in m.distributions())
found = {name.lower().replace("_", "-"): version for name, version in names}
print(json.dumps({name: found[name] for name in sys.argv[1:] if name in found}))
"""
"""Versions of the packages that it is given the names of; some spell their own with underscores."""


LISTS: Mapping[str, Collection[str]] = {"workloads": WORKLOADS, "peers": PEERS, "settings": KINDS}
"""Options that are lists, and what may be in them."""


@dataclass(frozen=True)
class PeersOptions:
    """What to compare, and for how long."""

    workloads: str = option(",".join(WORKLOADS), "tasks, with commas between them")
    peers: str = option(",".join(PEERS), "systems, with commas between them")
    settings: str = option(
        ",".join(KINDS), "tables: equal settings for all, best for each system at its own best"
    )
    repeats: int = option(5, "runs of each system on each workload", at_least=1, at_most=1000)
    warm_up_seconds: float = option(
        20.0, "seconds after the first update that are not counted", at_least=0
    )
    window_seconds: float = option(60.0, "seconds that are counted", above=0)
    threshold_steps: int = option(
        2_000_000, "W3: agent steps after which a run has failed to reach 475", at_least=1
    )
    silence_seconds: float = option(180.0, "a run that says nothing for so long has failed", above=0)
    sample_factory_python: str | None = option(None, "interpreter that has sample-factory")
    rllib_python: str | None = option(None, "interpreter that has ray[rllib]")
    stable_baselines3_python: str | None = option(None, "interpreter that has stable-baselines3")
    rows: str | None = option(None, "file for the raw rows, which a later call goes on from")
    json: bool = option(False, "print one JSON object on the last line")

    def __post_init__(self) -> None:
        check_ranges(self)
        for name, known in LISTS.items():
            for value in self.chosen(name):
                if value not in known:
                    raise ConfigError(f"--{name} {value}: expected some of {','.join(known)}")

    def chosen(self, name: str) -> list[str]:
        """The values of an option that is a list."""
        text: str = getattr(self, name)
        return [value.strip() for value in text.split(",")]

    def python(self, peer: str) -> str | None:
        """The interpreter that drives a system; None where it was not given."""
        if peer == "seedbed":
            return sys.executable
        given: str | None = getattr(self, f"{peer.replace('-', '_')}_python")
        return given


@dataclass(frozen=True)
class Installed:
    """A system that can run, or why not."""

    versions: dict[str, str]
    missing: str = ""


def find(peer: str, python: str | None) -> Installed:
    """Whether the interpreter is there and has the system."""
    if python is None:
        return Installed({}, f"--{peer}-python was not given")
    packages = PEERS[peer].packages
    try:
        done = subprocess.run(
            [python, "-c", PROBE, *packages, *ALWAYS_RECORDED],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        return Installed({}, f"{python} does not run: {error}")
    versions: dict[str, str] = json.loads(done.stdout)
    if packages[0] not in versions:
        return Installed(versions, f"{packages[0]} is not installed in {python}")
    return Installed(versions)


def run_one(options: PeersOptions, row: Row, settings: Settings) -> Row:
    """One run as a row, whatever comes of it."""
    python = options.python(row.peer)
    assert python is not None
    workload = WORKLOADS[row.workload]
    limits = Limits(
        options.warm_up_seconds,
        options.window_seconds,
        workload.threshold,
        options.threshold_steps,
    )
    try:
        observed = observe(
            command(python, PEERS[row.peer].driver, settings),
            limits,
            threads=settings.threads,
            silence_seconds=options.silence_seconds,
        )
    except WorkerFailure as failure:
        return replace(row, status="crashed", reason=str(failure))
    row = row_of(row, settings, observed)
    if row.peer != "seedbed":
        return row
    figures = {**row.figures, "wire_bytes_per_step": wire_bytes(*wire_case(settings))}
    return replace(row, figures=figures)


@functools.cache
def wire_bytes(case: str, num_actions: int) -> float:
    """What seedbed sends for one step, both ways, counted between a client and a server of their own."""
    found: float = measure_case(case, num_actions, WIRE_STEPS)["wire_bytes"]
    return found


def compare(
    options: PeersOptions,
    file: RowFile,
    *,
    run: Callable[[PeersOptions, Row, Settings], Row] = run_one,
    tell: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> list[Row]:
    """All rows, in the order in which they were run."""
    peers = options.chosen("peers")
    installed = {peer: find(peer, options.python(peer)) for peer in peers}
    kinds = [kind for kind in KINDS if kind in options.chosen("settings")]
    turns = in_turn(options.chosen("workloads"), kinds, peers, options.repeats)
    for workload, kind, peer, repeat in turns:
        row = Row(workload=workload, kind=kind, peer=peer, repeat=repeat)
        if file.has(row.key):
            continue
        settings = settings_for(peer, workload, kind, repeat)
        if settings is None or installed[peer].missing:
            reason = installed[peer].missing or CANNOT[peer, workload]
            file.add(replace(row, status="skipped", reason=reason))
            continue
        row = replace(
            row,
            algorithm=algorithm_of(peer, settings),
            settings=asdict(settings),
            versions=installed[peer].versions,
            load_average=os.getloadavg()[0],
        )
        row = run(options, row, settings)
        file.add(row)
        tell(_line(row))
    return file.rows


def _line(row: Row) -> str:
    """What is said of a row as soon as it is there."""
    rate = row.figures.get("steps_per_second")
    figure = f"{rate:,.0f} steps/s" if rate is not None else ""
    words = [row.workload, row.kind, row.peer, str(row.repeat), row.status, figure, row.reason]
    return " ".join(word for word in words if word)


def _end(number: int, _: Any) -> None:
    raise SystemExit(128 + number)


def is_wanted(options: PeersOptions, row: Row) -> bool:
    """Whether a row, perhaps of an earlier call, belongs into the tables of this one."""
    return (
        row.workload in options.chosen("workloads")
        and row.kind in options.chosen("settings")
        and row.peer in options.chosen("peers")
    )


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    arguments = sys.argv[1:] if argv is None else argv
    options = parse(PeersOptions, arguments, prog="benchmarks.peers", description=__doc__)
    where = machine.describe()
    processes.adopt_orphans()
    # The systems' processes would outlive this one.
    signal.signal(signal.SIGTERM, _end)
    rows = compare(options, RowFile(Path(options.rows) if options.rows else None))
    wanted = [row for row in rows if is_wanted(options, row)]
    result: dict[str, Any] = {"rows": [asdict(row) for row in wanted]}
    whole = {"benchmark": "peers", "options": asdict(options), "machine": where, **result}
    output.show(tables(wanted), whole, options.json)


if __name__ == "__main__":
    main()
