"""What starting costs: time and resident memory of `import actor`, of an actor and of a learner.

    python -m benchmarks.startup [--repeats 5] [--json]

Every number is taken from a process of its own. With --json the last line of the output is one JSON
object that holds every repeat.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

ENV = "CartPole-v1"
ENVIRONMENTS = 16
STEPPING_SECONDS = 2.0
"""How long the actor steps before its memory, and the learner's, is read."""

DEADLINE_SECONDS = 120.0

IMPORT = """
import time
began = time.perf_counter()
{statement}
seconds = time.perf_counter() - began
pages = int(open("/proc/self/statm").read().split()[1])
print(seconds, pages)
"""

PACKAGES = ("seedbed", "numpy", "grpcio", "gymnasium", "keras")


class Sample(NamedTuple):
    """One process's costs."""

    seconds: float | None
    """None where a process is only looked at again"""
    megabytes: float
    """resident, 1 MB = 10^6 bytes"""


Results = dict[str, list[Sample]]


def megabytes(pages: int) -> float:
    """Resident pages of Linux as 10^6 bytes."""
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def resident(pid: int) -> float:
    """Megabytes that the process has in memory now."""
    return megabytes(int(Path(f"/proc/{pid}/statm").read_text().split()[1]))


def measure_import(statement: str) -> Sample:
    """A fresh interpreter that executes `statement`; the interpreter's own start is not counted."""
    command = [sys.executable, "-c", IMPORT.format(statement=statement)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    seconds, pages = done.stdout.split()
    return Sample(float(seconds), megabytes(int(pages)))


def measure_processes() -> dict[str, Sample]:
    """A learner and an actor that asks it for actions, on a unix socket."""
    with tempfile.TemporaryDirectory(prefix="seedbed-") as folder:
        address = f"unix:{folder}/learner.sock"
        learner = [
            "learner", "learner", f"--listen={address}", f"--env={ENV}", f"--logdir={folder}/run",
            "--total-steps=1000000000", "--progress=none",
        ]  # fmt: skip
        actor = ["actor", f"--server={address}", f"--env={ENV}", f"--num-envs={ENVIRONMENTS}"]
        with started(learner) as learner_process:
            serving = Sample(seconds_until(lambda: wait_until_serving(address)), 0.0)
            serving = serving._replace(megabytes=resident(learner_process.pid))
            with started(actor) as actor_process:
                seconds = seconds_until(lambda: wait_for_line(actor_process, "connected at"))
                time.sleep(STEPPING_SECONDS)
                return {
                    "learner, start to SERVING": serving,
                    "actor, start to connected": Sample(seconds, resident(actor_process.pid)),
                    "learner, while training": Sample(None, resident(learner_process.pid)),
                }


@contextmanager
def started(arguments: Sequence[str]) -> Iterator["subprocess.Popen[str]"]:
    """A module of this repository as a process, ended with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        # The learner's own words are not needed, and a pipe that nobody reads would fill up.
        stderr=subprocess.PIPE if arguments[0] == "actor" else subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE_SECONDS)


def seconds_until(wait: Callable[[], None]) -> float:
    """Seconds that `wait` takes."""
    began = time.perf_counter()
    wait()
    return time.perf_counter() - began


def wait_until_serving(address: str) -> None:
    """Until the learner's health check says SERVING."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest()
        for answer in stub.Watch(request, timeout=DEADLINE_SECONDS, wait_for_ready=True):
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                return
    raise RuntimeError(f"expected the learner at {address} to serve, found that it ended")


def wait_for_line(process: "subprocess.Popen[str]", text: str) -> None:
    """Until the process says `text` on stderr."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if text in line:
            return
    raise RuntimeError(f"expected {text!r}, found {''.join(said)!r}")


def measure(repeats: int) -> Results:
    """All samples, by what they are of; the kinds are interleaved, so that all see the same machine."""
    results: Results = {}
    for repeat in range(repeats):
        print(f"repeat {repeat + 1} of {repeats}", file=sys.stderr, flush=True)
        samples = {
            "an empty interpreter": measure_import("pass"),
            "import numpy, grpc": measure_import("import numpy, grpc"),
            "import actor": measure_import("import actor"),
            **measure_processes(),
        }
        for what, sample in samples.items():
            results.setdefault(what, []).append(sample)
    return results


def table(results: Results) -> str:
    """Medians, and the smallest and largest in brackets, as a Markdown table."""
    lines = ["| what | seconds | resident MB |", "|---|---|---|"]
    for what, samples in results.items():
        seconds = [sample.seconds for sample in samples if sample.seconds is not None]
        sizes = [sample.megabytes for sample in samples]
        lines.append(f"| {what} | {_summary(seconds, '.3f')} | {_summary(sizes, '.1f')} |")
    return "\n".join(lines)


def as_json(results: Results) -> str:
    """Everything on one line."""
    return json.dumps(
        {
            "benchmark": "startup",
            "cpus": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
            "samples": {
                what: [sample._asdict() for sample in samples] for what, samples in results.items()
            },
        }
    )


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser: Any = argparse.ArgumentParser(prog="benchmarks.startup", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="processes of each kind")
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    options = parser.parse_args(argv)
    results = measure(options.repeats)
    print(table(results))
    if options.json:
        print(as_json(results))


def _summary(values: Sequence[float], form: str) -> str:
    if not values:
        return "-"
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:{form}} [{low:{form}}, {high:{form}}]"


if __name__ == "__main__":
    main()
