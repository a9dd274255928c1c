"""What serving costs: a learner that does not train, under actors whose environments cost nothing.

    python -m benchmarks.serving [--observation 4:float32] [--actors 4] [--envs 32] [--json]

The same run measures the two things that no server can save: the same messages through a bare gRPC
echo server, and the same policy on batches of the same mean size. `ratio` is the measured rate as a
part of 1 / (1 / echo + 1 / policy), the rate at which nothing else would cost anything. The echo is of
`grpc.aio`, what a server in Python is built on as a rule; beside it is one over seedbed's own transport,
which is faster, with a `transport_ratio` of its own.

All of them are started once and measured in turn, in several rounds, while the others are idle. Each
round has ratios of its own, in which a change of the machine's speed between rounds cancels; the ratios
are the medians of these, and all other figures are of all rounds together.
"""

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from benchmarks import machine, output
from benchmarks.children import Child, address, child
from benchmarks.echo import run_echo
from benchmarks.load import Load, Loaded, loading
from benchmarks.measure import Meter, Usage, Window, percentiles, together
from benchmarks.queue_echo import run_calls, run_queue_echo
from benchmarks.serving_actor import ActorSetup, run_free_actor
from benchmarks.serving_learner import Counters, Setup, between, local_options, run_learner
from benchmarks.streams import Plan, run_streams
from benchmarks.worlds import parse_observation, spec_of
from learner.config import LearnerOptions
from learner.planning.ready import actions_message, step_message
from protos.errors import ConfigError
from protos.options import check_ranges, option, parse, refuse
from protos.specs import EnvironmentSpec

SEQUENCE = 10_000
"""A step in the middle of a session, for the sizes of messages."""

RESUME_SECONDS = 0.1
"""What a part is given in its turn before it is measured, to be at full speed again."""

SHORTEST_SECONDS = 0.1
"""A shorter window would have too few messages in it for a ratio of its own."""


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
    seconds: float = option(6.0, "measured seconds of serving, and of each limit", above=0)
    rounds: int = option(
        4,
        "rounds that share the seconds: in each, serving and the limits are measured in turn",
        at_least=1,
    )
    warm_up_seconds: float = option(
        1.5,
        "seconds that each of the four parts gets in one more round, before those that count; "
        "0 for no such round",
        at_least=0,
    )
    json: bool = option(False, "print one JSON object on the last line")

    def __post_init__(self) -> None:
        check_ranges(self)
        parse_observation(self.observation)
        if self.window_seconds < SHORTEST_SECONDS:
            raise ConfigError(
                f"--rounds {self.rounds}: expected windows of at least {SHORTEST_SECONDS:g} s, found "
                f"{self.window_seconds:g} s of --seconds {self.seconds:g}"
            )

    @property
    def window_seconds(self) -> float:
        """Measured seconds of each part in each round."""
        return self.seconds / self.rounds

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


class _Parts(NamedTuple):
    """What is measured in turn, started and idle."""

    learner: Child
    actors: Load
    echo: Load
    transport: Load


class _Policy(NamedTuple):
    """A window of the policy alone."""

    window: Window
    rows: int
    """in each call"""
    calls: int
    seconds: float


class _Round(NamedTuple):
    """A window of each part, one right after the other."""

    serving: Loaded
    echo: Loaded
    transport: Loaded
    policy: _Policy


def measure(options: ServingOptions) -> tuple[dict[str, Any], dict[str, Usage]]:
    """The figures, and what the windows cost in which they were taken, by part.

    Raises:
        ConfigError: a window was too short for a batch.
    """
    with _parts(options) as parts:
        if options.warm_up_seconds:
            _round(parts, options.warm_up_seconds)
        rounds = [_round(parts, options.window_seconds) for _ in range(options.rounds)]
    windows = {
        "serving": together([each.serving.window for each in rounds]),
        "echo": together([each.echo.window for each in rounds]),
        "transport": together([each.transport.window for each in rounds]),
        "the policy": together([each.policy.window for each in rounds]),
    }
    return _result(options, rounds, windows), windows


@contextmanager
def _parts(options: ServingOptions) -> Iterator[_Parts]:
    with (
        address(options.transport) as listen,
        child(
            "learner", run_learner, Setup(listen, options.spec, options.learner, options.record)
        ) as learner,
    ):
        actor = _actor(options, learner.answer())
        with (
            _echo_load(options, "echo", run_echo, run_streams) as echo,
            _echo_load(options, "transport", run_queue_echo, run_calls) as transport,
            loading(learner, run_free_actor, [actor] * options.actors) as actors,
        ):
            yield _Parts(learner, actors, echo, transport)


@contextmanager
def _echo_load(
    options: ServingOptions, name: str, serve: Callable[..., None], call: Callable[..., None]
) -> Iterator[Load]:
    """The same messages, with `serve` and `call` as the processes' bodies."""
    step, reply_bytes = _messages(options)
    with (
        address(options.transport) as listen,
        child(name, serve, listen, reply_bytes) as server,
        loading(server, call, [Plan(server.answer(), count=1, step=step)] * options.actors) as clients,
    ):
        yield clients


def _messages(options: ServingOptions) -> tuple[bytes, int]:
    """A request, and how many bytes its answer has."""
    step = step_message(options.spec, options.envs, SEQUENCE).SerializeToString()
    return step, actions_message(options.spec, options.envs, SEQUENCE).ByteSize()


def _actor(options: ServingOptions, learner_address: str) -> ActorSetup:
    return ActorSetup(
        learner_address,
        options.observation,
        options.num_actions,
        options.envs,
        options.actor_niceness,
    )


def _round(parts: _Parts, seconds: float) -> _Round:
    def loaded(clients: Load, look: Callable[[], Any] = lambda: None) -> Loaded:
        return clients.window(seconds, warm_up_seconds=RESUME_SECONDS, look=look)

    serving = loaded(parts.actors, lambda: parts.learner.ask("counters"))
    echo, transport = loaded(parts.echo), loaded(parts.transport)
    rows = batch_rows(between([serving.looks]), seconds)
    return _Round(serving, echo, transport, _policy(parts.learner, rows, seconds))


def batch_rows(done: Counters, seconds: float) -> int:
    """Rows of the mean batch in a window of `seconds`, for the policy alone.

    Raises:
        ConfigError: there was no batch.
    """
    if not done.batches:
        raise ConfigError(
            f"no batch in a window of {seconds:g} s: fewer --rounds, or more --seconds or "
            "--warm-up-seconds"
        )
    return round(_mean_batch(done))


def _policy(learner: Child, rows: int, seconds: float) -> _Policy:
    learner.ask("policy", rows, RESUME_SECONDS)
    meter = Meter({"server": [learner.pid]})
    calls, took = learner.ask("policy", rows, seconds)
    return _Policy(meter.stop(), rows, calls, took)


# Figures ----------------------------------------------------------------------------------------


def _result(
    options: ServingOptions, rounds: Sequence[_Round], windows: dict[str, Usage]
) -> dict[str, Any]:
    rates = _rates(options, rounds)
    by_round = [_rates(options, [each]) for each in rounds]
    for each in by_round:
        each["ratio"] = each["serving"] / _limit(each["echo"], each["policy"])
        each["transport_ratio"] = each["serving"] / _limit(each["transport"], each["policy"])
    result = {
        "serving": _serving([each.serving for each in rounds], windows["serving"], rates["serving"]),
        "echo": _echo(options, [each.echo for each in rounds], windows["echo"], rates["echo"]),
        "transport": _echo(
            options, [each.transport for each in rounds], windows["transport"], rates["transport"]
        ),
        "policy": _policy_alone([each.policy for each in rounds], rates["policy"]),
    }
    cpu_limit = sum(result[name]["cpu_seconds_per_million"] for name in ("echo", "policy"))
    return {
        **result,
        "limit_observations_per_second": _limit(rates["echo"], rates["policy"]),
        "ratio": statistics.median(each["ratio"] for each in by_round),
        "transport_ratio": statistics.median(each["transport_ratio"] for each in by_round),
        "cpu_ratio": cpu_limit / result["serving"]["cpu_seconds_per_million"],
        "rounds": by_round,
    }


def _rates(options: ServingOptions, rounds: Sequence[_Round]) -> dict[str, float]:
    """Observations a second of each part, over all of these rounds."""

    def echoed(parts: Sequence[Loaded]) -> float:
        messages = sum(len(seen) for part in parts for seen in part.clients)
        return messages * options.envs / sum(part.window.seconds for part in parts)

    served = between([each.serving.looks for each in rounds])
    policy = [each.policy for each in rounds]
    return {
        "serving": served.rows / served.time,
        "echo": echoed([each.echo for each in rounds]),
        "transport": echoed([each.transport for each in rounds]),
        "policy": _policy_rows(policy) / sum(part.seconds for part in policy),
    }


def _limit(*rates: float) -> float:
    """Observations a second where nothing costs anything but what has these rates alone."""
    return 1 / sum(1 / rate for rate in rates)


def _mean_batch(done: Counters) -> float:
    return done.rows / done.batches


def _serving(served: Sequence[Loaded], usage: Usage, rate: float) -> dict[str, Any]:
    done = between([part.looks for part in served])
    round_trips = np.concatenate([seen for part in served for seen in part.clients])
    return {
        "observations_per_second": rate,
        "messages": len(round_trips),
        "round_trip_ms": percentiles(round_trips),
        "mean_batch": _mean_batch(done),
        **_cpu(usage, rate, "learner", "actors"),
        "learner_threads_cpu_seconds_per_million": _threads(done, usage, rate),
    }


def _policy_alone(policy: Sequence[_Policy], rate: float) -> dict[str, Any]:
    rows = _policy_rows(policy)
    cpu_seconds = sum(part.window.cpu_seconds["server"] for part in policy)
    return {
        "observations_per_second": rate,
        "batch": round(rows / sum(part.calls for part in policy)),
        "cpu_seconds_per_million": cpu_seconds / rows * 1e6,
    }


def _policy_rows(policy: Sequence[_Policy]) -> int:
    return sum(part.calls * part.rows for part in policy)


def _echo(
    options: ServingOptions, echoed: Sequence[Loaded], usage: Usage, rate: float
) -> dict[str, Any]:
    step, reply_bytes = _messages(options)
    round_trips = np.concatenate([seen for part in echoed for seen in part.clients])
    return {
        "observations_per_second": rate,
        "request_bytes": len(step),
        "reply_bytes": reply_bytes,
        "round_trip_ms": percentiles(round_trips),
        **_cpu(usage, rate, "server", "clients"),
    }


def _cpu(usage: Usage, rate: float, server: str, clients: str) -> dict[str, float]:
    """CPU seconds for a million observations at `rate` observations a second."""
    millions = rate * usage.seconds / 1e6
    at_server, at_clients = (usage.cpu_seconds[name] / millions for name in ("server", "clients"))
    return {
        f"{server}_cpu_seconds_per_million": at_server,
        f"{clients}_cpu_seconds_per_million": at_clients,
        "cpu_seconds_per_million": at_server + at_clients,
    }


def _threads(done: Counters, usage: Usage, rate: float) -> dict[str, float]:
    """CPU seconds for a million observations, by thread of the learner."""
    # Of each second, because the looks were taken a moment outside the windows.
    share = {name: spent / done.time for name, spent in done.thread_cpu_seconds.items()}
    whole = usage.cpu_seconds["server"] / usage.seconds
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
        ["ratio of observations/s to the limit's", *_spread(result, "ratio")],
        ["the same, with its own transport's echo", *_spread(result, "transport_ratio")],
        ["ratio of the limit's CPU time to the measured", result["cpu_ratio"], None, None],
        ["mean batch", serving["mean_batch"], None, None],
        ["bytes of a request", echo["request_bytes"], None, None],
    ]
    return [
        f"{options.actors} actors x {options.envs} environments, {options.spec}",
        output.table(headers, rates),
        output.table(("CPU", "us / observation", "us / message"), split),
        output.table(("", "median or whole", "lowest round", "highest round"), ratios),
    ]


def _spread(result: dict[str, Any], name: str) -> list[float]:
    """The median of the rounds, the lowest and the highest."""
    found = [each[name] for each in result["rounds"]]
    return [result[name], min(found), max(found)]


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    options = parse(
        ServingOptions,
        sys.argv[1:] if argv is None else argv,
        prog="benchmarks.serving",
        description=__doc__,
    )
    where = machine.describe()
    try:
        result, windows = measure(options)
    except ConfigError as error:
        refuse("benchmarks.serving", str(error))
    whole = output.whole("serving", where, options, result, windows)
    output.show([*tables(options, result), output.warning(windows)], whole, options.json)


if __name__ == "__main__":
    main()
