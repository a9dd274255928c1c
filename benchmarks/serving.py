"""What serving costs: a learner that does not train, under actors whose environments cost nothing.

    python -m benchmarks.serving [--observation 4:float32] [--actors 4] [--envs 32] [--json]

The same run measures the two things that no server can save: the same messages through a bare gRPC
echo server, and the same policy on batches of the same mean size. `ratio` is the measured rate as a
part of 1 / (1 / echo + 1 / policy), the rate at which nothing else would cost anything. The echo is of
`grpc.aio`, what a server in Python is built on as a rule; beside it is one over seedbed's own transport,
which is faster, with a `transport_ratio` of its own.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from benchmarks import machine, output
from benchmarks.children import Child, address, child
from benchmarks.echo import run_echo
from benchmarks.load import Loaded, load
from benchmarks.measure import Meter, Window, percentiles
from benchmarks.queue_echo import run_calls, run_queue_echo
from benchmarks.serving_actor import ActorSetup, run_free_actor
from benchmarks.serving_learner import Counters, Setup, local_options, run_learner
from benchmarks.streams import Plan, run_streams
from benchmarks.worlds import parse_observation, spec_of
from learner.config import LearnerOptions
from learner.planning.ready import actions_message, step_message
from protos.options import check_ranges, option, parse
from protos.specs import EnvironmentSpec

SEQUENCE = 10_000
"""A step in the middle of a session, for the sizes of messages."""


@dataclass(frozen=True)
class ServingOptions:
    """What to load the learner with, and how long."""

    actors: int = option(4, "actor processes", at_least=1)
    envs: int = option(32, "environments in each actor process, which are one message", at_least=1)
    actor_niceness: int = option(
        5, "how far actors stand back for the learner, as in `seedbed train`", at_least=0, at_most=19
    )
    observation: str = option("84x84x1:uint8", "one observation, as 84x84x1:uint8 or 4:float32")
    num_actions: int = option(6, "discrete actions", at_least=2)
    frame_stack: int = option(
        0, "images the policy sees at once; 0 for 4 of an image, else 1", at_least=0
    )
    torso: Literal["auto", "mlp", "shallow", "deep"] = option("auto", "network, as in `seedbed train`")
    hidden_sizes: tuple[int, ...] = option((64, 64), "units of the MLP's layers", at_least=1)
    inference_threads: int = option(1, "threads that call the policy", at_least=1)
    policy_engine: Literal["auto", "numpy", "tensorflow"] = option(
        "auto", "what computes actions, as in `seedbed train`"
    )
    tf_threads: int = option(
        0, "threads of one TensorFlow operation; 0 for half of the cores", at_least=0
    )
    unroll_length: int = option(20, "transitions of a recorded unroll", at_least=1)
    record: bool = option(True, "record unrolls, which a thread takes and drops")
    transport: Literal["unix", "tcp"] = option("unix", "unix socket or TCP on 127.0.0.1")
    seconds: float = option(6.0, "measured seconds of serving; half as many of each limit", above=0)
    warm_up_seconds: float = option(1.5, "seconds before them", at_least=0)
    json: bool = option(False, "print one JSON object on the last line")

    def __post_init__(self) -> None:
        check_ranges(self)
        parse_observation(self.observation)

    @property
    def spec(self) -> EnvironmentSpec:
        return spec_of(self.observation, self.num_actions)

    @property
    def learner(self) -> LearnerOptions:
        image = len(self.spec.observation[0].shape) == 3
        options = LearnerOptions(
            frame_stack=self.frame_stack or (4 if image else 1),
            torso=self.torso,
            hidden_sizes=self.hidden_sizes,
            unroll_length=self.unroll_length,
            inference_threads=self.inference_threads,
            policy_engine=self.policy_engine,
            tf_threads=self.tf_threads,
        )
        return local_options(options, self.actors * self.envs)


def measure(options: ServingOptions) -> tuple[dict[str, Any], dict[str, Window]]:
    """The figures, and the windows in which they were taken."""
    with (
        address(options.transport) as listen,
        child(
            "learner",
            run_learner,
            Setup(listen, options.spec, options.learner, options.record),
        ) as learner,
    ):
        served = _serve(options, learner)
        serving = _serving(options, served)
        rows = max(round(serving["mean_batch"]), 1)
        policy, policy_window = _policy(options, learner, rows)
    echo, echo_window = _echo(options, run_echo, run_streams)
    transport, transport_window = _echo(options, run_queue_echo, run_calls)
    rate = serving["observations_per_second"]
    limit, transport_limit = _limit(echo, policy), _limit(transport, policy)
    cpu_limit = sum(each["cpu_seconds_per_million"] for each in (echo, policy))
    result = {
        "serving": serving,
        "echo": echo,
        "transport": transport,
        "policy": policy,
        "limit_observations_per_second": limit,
        "ratio": rate / limit,
        "transport_ratio": rate / transport_limit,
        "cpu_ratio": cpu_limit / serving["cpu_seconds_per_million"],
    }
    return result, {
        "serving": served.window,
        "echo": echo_window,
        "transport": transport_window,
        "the policy": policy_window,
    }


def _limit(*alone: dict[str, Any]) -> float:
    """Observations a second where nothing costs anything but these."""
    return 1 / sum(1 / each["observations_per_second"] for each in alone)


def _serve(options: ServingOptions, learner: Child) -> Loaded:
    setup = ActorSetup(
        learner.answer(),
        options.observation,
        options.num_actions,
        options.envs,
        options.actor_niceness,
    )
    return load(
        learner,
        run_free_actor,
        [setup] * options.actors,
        warm_up_seconds=options.warm_up_seconds,
        seconds=options.seconds,
        look=lambda: learner.ask("counters"),
    )


def _serving(options: ServingOptions, served: Loaded) -> dict[str, Any]:
    before: Counters = served.looks[0]
    after: Counters = served.looks[1]
    rows, batches = after.rows - before.rows, after.batches - before.batches
    rate = rows / (after.time - before.time)
    round_trips = np.concatenate(served.clients)
    return {
        "observations_per_second": rate,
        "messages": len(round_trips),
        "round_trip_ms": percentiles(round_trips),
        "mean_batch": rows / max(batches, 1),
        **_cpu(served.window, rate, "learner", "actors"),
        "learner_threads_cpu_seconds_per_million": _threads(served, rate),
    }


def _policy(options: ServingOptions, learner: Child, rows: int) -> tuple[dict[str, Any], Window]:
    meter = Meter({"server": [learner.pid], "clients": []})
    rate = learner.ask("policy", rows, options.seconds / 2)
    window = meter.stop()
    per_million = window.cpu_seconds["server"] / window.seconds / rate * 1e6
    policy = {
        "observations_per_second": rate,
        "batch": rows,
        "cpu_seconds_per_million": per_million,
    }
    return policy, window


def _echo(
    options: ServingOptions, serve: Callable[..., None], call: Callable[..., None]
) -> tuple[dict[str, Any], Window]:
    """The same messages, with `serve` and `call` as the processes' bodies."""
    step = step_message(options.spec, options.envs, SEQUENCE).SerializeToString()
    reply = actions_message(options.spec, options.envs, SEQUENCE).ByteSize()
    with address(options.transport) as listen, child("echo", serve, listen, reply) as server:
        plan = Plan(server.answer(), count=1, step=step)
        echoed = load(
            server,
            call,
            [plan] * options.actors,
            warm_up_seconds=options.warm_up_seconds / 2,
            seconds=options.seconds / 2,
        )
    round_trips = np.concatenate([seen.round_trip_seconds for seen in echoed.clients])
    rate = len(round_trips) * options.envs / echoed.window.seconds
    echo = {
        "observations_per_second": rate,
        "request_bytes": len(step),
        "reply_bytes": reply,
        "round_trip_ms": percentiles(round_trips),
        **_cpu(echoed.window, rate, "server", "clients"),
    }
    return echo, echoed.window


def _cpu(window: Window, rate: float, server: str, clients: str) -> dict[str, float]:
    """CPU seconds for a million observations at `rate` observations a second."""
    millions = rate * window.seconds / 1e6
    at_server, at_clients = (window.cpu_seconds[name] / millions for name in ("server", "clients"))
    return {
        f"{server}_cpu_seconds_per_million": at_server,
        f"{clients}_cpu_seconds_per_million": at_clients,
        "cpu_seconds_per_million": at_server + at_clients,
    }


def _threads(served: Loaded, rate: float) -> dict[str, float]:
    """CPU seconds for a million observations, by thread of the learner."""
    before: Counters = served.looks[0]
    after: Counters = served.looks[1]
    elapsed = after.time - before.time
    # Of each second, because the looks were taken a moment outside the window.
    share = {
        name: (spent - before.thread_cpu_seconds.get(name, 0.0)) / elapsed
        for name, spent in after.thread_cpu_seconds.items()
    }
    whole = served.window.cpu_seconds["server"] / served.window.seconds
    share["native threads"] = whole - sum(share.values())
    return {name: spent / rate * 1e6 for name, spent in share.items()}


def tables(options: ServingOptions, result: dict[str, Any]) -> list[str]:
    """What to print."""
    serving, echo, policy = result["serving"], result["echo"], result["policy"]
    transport = result["transport"]
    columns = ("observations_per_second", "cpu_seconds_per_million")
    rates = [
        ["serving", *(serving[name] for name in columns), *serving["round_trip_ms"].values()],
        ["echo alone", *(echo[name] for name in columns), *echo["round_trip_ms"].values()],
        [
            "its own transport alone",
            *(transport[name] for name in columns),
            *transport["round_trip_ms"].values(),
        ],
        ["policy alone", *(policy[name] for name in columns), None, None, None],
    ]
    headers = ("", "observations/s", "CPU s / million", "p50 ms", "p95 ms", "p99 ms")
    parts = {
        "actors": serving["actors_cpu_seconds_per_million"],
        "learner": serving["learner_cpu_seconds_per_million"],
        **{
            f"of it {name}": seconds
            for name, seconds in serving["learner_threads_cpu_seconds_per_million"].items()
        },
    }
    # Seconds for a million observations are microseconds for one.
    split = [[name, spent, spent * options.envs] for name, spent in parts.items()]
    ratios = [
        ["ratio of observations/s to the limit's", result["ratio"]],
        ["the same, with its own transport's echo", result["transport_ratio"]],
        ["ratio of the limit's CPU time to the measured", result["cpu_ratio"]],
        ["mean batch", serving["mean_batch"]],
        ["bytes of a request", echo["request_bytes"]],
    ]
    return [
        f"{options.actors} actors x {options.envs} environments, {options.spec}",
        output.table(headers, rates),
        output.table(("CPU", "us / observation", "us / message"), split),
        output.table(("", "value"), ratios),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    options = parse(
        ServingOptions,
        sys.argv[1:] if argv is None else argv,
        prog="benchmarks.serving",
        description=__doc__,
    )
    where = machine.describe()
    result, windows = measure(options)
    whole = output.whole("serving", where, options, result, windows)
    output.show([*tables(options, result), output.warning(windows)], whole, options.json)


if __name__ == "__main__":
    main()
