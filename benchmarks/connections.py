"""What connections cost: streams of one environment each, from one to a thousand.

    python -m benchmarks.connections [--levels [1, 16, 64, 256, 1024]] [--echo] [--json]

A real learner that does not train (see `benchmarks.serving`), and streams with a connection of their own
each, multiplexed by a few processes, closed loop. `cost_ratio` is the learner's CPU time for a message
with the most connections as a part of that with 16. With --echo, a bare gRPC server under the same load
says how much of it is gRPC's own.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from benchmarks import machine, output
from benchmarks.children import Child, address, child
from benchmarks.echo import run_echo
from benchmarks.load import Loaded, load
from benchmarks.measure import Window, percentiles, resident_bytes
from benchmarks.serving_learner import Counters, Setup, run_learner
from benchmarks.streams import Plan, run_streams
from benchmarks.worlds import open_message, parse_observation, spec_of
from learner.config import LearnerOptions
from learner.planning.ready import actions_message, step_message
from protos import inference_pb2 as pb
from protos.errors import ConfigError
from protos.options import check_ranges, option, parse
from protos.specs import EnvironmentSpec

BASE_LEVEL = 16
"""What the cost with the most connections is compared with: a batch is shared by then."""

MAX_BATCH = 256
"""Rows of a policy call, as the learner takes where it is not told otherwise."""

CLOSE = pb.ClientMessage(close=pb.Close())


@dataclass(frozen=True)
class ConnectionsOptions:
    """How many connections, and how long."""

    levels: tuple[int, ...] = option(
        (1, 16, 64, 256, 1024), "numbers of connections, ascending", at_least=1
    )
    processes: int = option(2, "client processes that share the connections", at_least=1)
    observation: str = option("4:float32", "one observation, as 84x84x1:uint8 or 4:float32")
    num_actions: int = option(2, "discrete actions", at_least=2)
    inference_threads: int = option(1, "threads that call the policy", at_least=1)
    echo: bool = option(False, "load a bare gRPC server in the same way, too")
    transport: Literal["unix", "tcp"] = option("tcp", "unix socket or TCP on 127.0.0.1")
    seconds: float = option(2.5, "measured seconds of each number", above=0)
    warm_up_seconds: float = option(1.0, "seconds before them", at_least=0)
    json: bool = option(False, "print one JSON object on the last line")

    def __post_init__(self) -> None:
        check_ranges(self)
        parse_observation(self.observation)
        if list(self.levels) != sorted(set(self.levels)) or not self.levels:
            raise ConfigError(f"--levels {list(self.levels)}: expected ascending numbers")

    @property
    def spec(self) -> EnvironmentSpec:
        return spec_of(self.observation, self.num_actions)

    @property
    def learner(self) -> LearnerOptions:
        slots = max(self.levels)
        return LearnerOptions(
            max_environments=slots,
            inference_batch_size=min(MAX_BATCH, slots),
            inference_threads=self.inference_threads,
        )

    @property
    def plan(self) -> Plan:
        """One stream of one environment, its address and number left open."""
        return Plan(
            address="",
            count=1,
            step=step_message(self.spec, 1, 1).SerializeToString(),
            opening=open_message(self.spec, 1).SerializeToString(),
            closing=CLOSE.SerializeToString(),
        )


class _Look(NamedTuple):
    resident_bytes: int
    counters: Counters | None


def measure(options: ConnectionsOptions) -> tuple[dict[str, Any], dict[str, Window]]:
    """The figures, and the windows in which they were taken."""
    with (
        address(options.transport) as listen,
        child("learner", run_learner, Setup(listen, options.spec, options.learner, True)) as learner,
    ):
        plan = replace(options.plan, address=learner.answer())
        levels, windows = _climb(options, learner, plan, counted=True)
    result = {"levels": levels, **_cost_ratio(levels)}
    if options.echo:
        reply = actions_message(options.spec, 1, 1).ByteSize()
        with address(options.transport) as listen, child("echo", run_echo, listen, reply) as server:
            plan = Plan(address=server.answer(), count=1, step=options.plan.step)
            bare, bare_windows = _climb(options, server, plan, counted=False)
        result["echo"] = {"levels": bare, **_cost_ratio(bare)}
        windows |= {f"echo with {name}": window for name, window in bare_windows.items()}
    return result, windows


def _climb(
    options: ConnectionsOptions, server: Child, plan: Plan, *, counted: bool
) -> tuple[list[dict[str, Any]], dict[str, Window]]:
    """Every number of connections after the other; `counted` if the server answers "counters"."""
    empty = resident_bytes(server.pid)
    levels, windows = [], {}
    for connections in options.levels:
        loaded = load(
            server,
            run_streams,
            [replace(plan, count=count) for count in _shares(connections, options.processes)],
            warm_up_seconds=options.warm_up_seconds,
            seconds=options.seconds,
            look=lambda: _Look(resident_bytes(server.pid), server.ask("counters") if counted else None),
        )
        levels.append(_level(connections, loaded, empty))
        windows[f"{connections} connections"] = loaded.window
    return levels, windows


def _shares(connections: int, processes: int) -> list[int]:
    """Connections of each process; none has none."""
    share, rest = divmod(connections, processes)
    return [count for index in range(processes) if (count := share + (index < rest))]


def _level(connections: int, loaded: Loaded, empty: int) -> dict[str, Any]:
    window = loaded.window
    round_trips = np.concatenate(loaded.clients)
    messages = len(round_trips)
    before, after = loaded.looks
    return {
        "connections": connections,
        "messages_per_second": messages / window.seconds,
        "server_cpu_us_per_message": window.cpu_seconds["server"] / max(messages, 1) * 1e6,
        "client_cpu_us_per_message": window.cpu_seconds["clients"] / max(messages, 1) * 1e6,
        "round_trip_ms": percentiles(round_trips),
        "mean_batch": _mean_batch(before.counters, after.counters),
        "resident_bytes": after.resident_bytes,
        "bytes_per_connection": (after.resident_bytes - empty) / connections,
    }


def _mean_batch(before: Counters | None, after: Counters | None) -> float | None:
    if before is None or after is None:
        return None
    return (after.rows - before.rows) / max(after.batches - before.batches, 1)


def _cost_ratio(levels: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """CPU time for a message with the most connections, as a part of that with 16."""
    cost = {level["connections"]: level["server_cpu_us_per_message"] for level in levels}
    most = max(cost)
    return {"cost_ratio": cost[most] / cost[BASE_LEVEL] if BASE_LEVEL in cost else None}


def table(levels: Sequence[dict[str, Any]]) -> str:
    """One row for each number of connections."""
    headers = (
        "connections",
        "messages/s",
        "server us / message",
        "client us / message",
        "p50 ms",
        "p99 ms",
        "mean batch",
        "server MB",
        "KB / connection",
    )
    rows = [
        [
            level["connections"],
            level["messages_per_second"],
            level["server_cpu_us_per_message"],
            level["client_cpu_us_per_message"],
            level["round_trip_ms"]["p50"],
            level["round_trip_ms"]["p99"],
            level["mean_batch"],
            level["resident_bytes"] / 1e6,
            level["bytes_per_connection"] / 1e3,
        ]
        for level in levels
    ]
    return output.table(headers, rows)


def tables(result: dict[str, Any]) -> list[str]:
    """What to print."""
    parts = ["Learner", table(result["levels"]), f"cost ratio {output.text(result['cost_ratio'])}"]
    if echo := result.get("echo"):
        parts += ["Bare echo", table(echo["levels"]), f"cost ratio {output.text(echo['cost_ratio'])}"]
    return parts


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    arguments = sys.argv[1:] if argv is None else argv
    options = parse(ConnectionsOptions, arguments, prog="benchmarks.connections", description=__doc__)
    where = machine.describe()
    result, windows = measure(options)
    whole = output.whole("connections", where, options, result, windows)
    output.show([*tables(result), output.warning(windows)], whole, options.json)


if __name__ == "__main__":
    main()
