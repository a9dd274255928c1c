"""What the cores of this machine are worth together.

    python -m benchmarks.cores [--seconds 1] [--rounds 3] [--json]

A virtual core is often one of two threads of a physical core. Then two of them do hardly more arithmetic
than one, and somewhat more of what mostly waits for memory: what speed two cores can give to an
environment, a policy and an update that run side by side is known only from this. Two kinds of work are
measured on one core alone, and on all cores at once, in turn.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks import machine, output
from benchmarks.children import Child, child, commands
from benchmarks.measure import Meter, Window
from protos.options import check_ranges, option, parse

SIZE = 256
"""Rows and columns of the matrices, which fit into a core's own cache: arithmetic is the limit."""

MULTIPLY_ADDS = SIZE**3


@dataclass(frozen=True)
class CoresOptions:
    """What the cores of this machine are worth together."""

    seconds: float = option(1.0, "seconds of each kind of work in each round", above=0)
    rounds: int = option(3, "rounds, of which the medians are reported", at_least=1)
    json: bool = option(False, "print one JSON object on the last line")

    def __post_init__(self) -> None:
        check_ranges(self)


def run_core(connection: Connection, core: int) -> None:
    """A process that stays on one core: for (work, seconds) it answers units of work a second."""
    os.sched_setaffinity(0, {core})
    for work, seconds in commands(connection):
        _, make = _WORK[work]
        some = make()
        begun = time.monotonic()
        done = 0.0
        while (now := time.monotonic()) < begun + seconds:
            done += some()
        connection.send(done / (now - begun))


def _products() -> Callable[[], float]:
    """Products of float32 matrices, which dense layers are, and convolutions in the end."""
    rng = np.random.default_rng(1)
    left, right = rng.random((2, SIZE, SIZE), np.float32)
    result = np.empty_like(left)

    def some() -> float:
        np.dot(left, right, out=result)
        return MULTIPLY_ADDS / 1e9

    return some


def _interpreting() -> Callable[[], float]:
    """Plain Python, which serving small messages mostly is."""

    def some() -> float:
        table: dict[int, int] = {}
        for number in range(1000):
            table[number & 63] = table.get(number & 31, 0) + number
        return 1e-3

    return some


_WORK: Mapping[str, tuple[str, Callable[[], Callable[[], float]]]] = {
    "matrix products": ("10^9 multiply-adds", _products),
    "Python": ("10^6 turns of a loop", _interpreting),
}
"""By what it is: its unit, and what makes a function that does some of it and says how much."""


def measure(options: CoresOptions) -> tuple[dict[str, Any], dict[str, Window]]:
    """By the kind of work: units a second of one core alone, of all at once, and how many cores alone
    would do as much."""
    found: dict[str, list[tuple[float, float]]] = {work: [] for work in _WORK}
    with _cores() as children:
        meter = Meter({"cores": [each.pid for each in children]})
        for index in range(options.rounds):
            for work, results in found.items():
                # Each core in its turn: one may be slower than another.
                alone = children[index % len(children)].ask(work, options.seconds)
                for each in children:
                    each.tell(work, options.seconds)
                results.append((alone, sum(each.answer() for each in children)))
        window = meter.stop()
    return {"work": {work: _summary(results) for work, results in found.items()}}, {"cores": window}


@contextmanager
def _cores() -> Iterator[Sequence[Child]]:
    # Products are not to be split among threads: each process is one core's.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with ExitStack() as stack:
        yield [
            stack.enter_context(child(f"core {core}", run_core, core))
            for core in sorted(os.sched_getaffinity(0))
        ]


def _summary(results: Sequence[tuple[float, float]]) -> dict[str, float]:
    return {
        "one_core": statistics.median(alone for alone, _ in results),
        "all_cores": statistics.median(together for _, together in results),
        "worth": statistics.median(together / alone for alone, together in results),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    arguments = sys.argv[1:] if argv is None else argv
    options = parse(CoresOptions, arguments, prog="benchmarks.cores", description=__doc__ or "")
    where = machine.describe()
    result, windows = measure(options)
    rows = [
        [f"{work}, {unit} a second", *result["work"][work].values()] for work, (unit, _) in _WORK.items()
    ]
    headers = ["work", "one core alone", f"all {machine.cores()} at once", "worth, in cores"]
    output.show(
        [output.table(headers, rows), output.warning(windows)],
        output.whole("cores", where, options, result, windows),
        options.json,
    )


if __name__ == "__main__":
    main()
