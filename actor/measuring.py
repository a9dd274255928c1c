"""`python -m actor.measuring`: what environments and messages cost an actor, without a policy.

Prints JSON, one object a line: first the specs, then, for each number of environments, the CPU time of
a step of them all, and that of a message to the server and its answer. `seedbed plan` starts it.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToDict

from actor.client import InferenceClient
from actor.environments import VectorEnvironment, make_environment
from actor.retry import RetryPolicy
from actor.timestep import transition
from protos import specs
from protos.errors import ConfigError, SeedbedError
from protos.options import check_ranges, option, parse
from protos.specs import ArraySpec, EnvironmentSpec

PROG = "actor.measuring"

MAX_ACTION = 1e3
"""Random actions without bounds stay below this."""

MIN_CALLS = 3


@dataclass(frozen=True)
class MeasuringOptions:
    """What environments and messages cost an actor, without a policy."""

    env: str | None = option(None, "environment, as in `seedbed-actor`")
    sizes: tuple[int, ...] = option((16,), "environments at once, one measurement each", at_least=1)
    seconds: float = option(0.5, "CPU seconds of stepping in each", above=0)
    server: str | None = option(None, "server that answers; if not given, no messages are measured")
    messages: int = option(400, "counted messages in each", at_least=1)
    uncounted_messages: int = option(100, "messages of each before them", at_least=1)
    parent: int = option(
        0, "process id; a server is not waited for once that process has ended", at_least=0
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.env:
            raise ConfigError("--env is required: what to step")


@dataclass(frozen=True)
class Stepping:
    """CPU time of stepping."""

    seconds_per_step: float
    """of one environment; resets are work, but no steps"""
    seconds_per_turn: float
    """of all environments together"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; the process's exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    options = parse(MeasuringOptions, arguments, prog=PROG, description=MeasuringOptions.__doc__ or "")
    # Whatever the environment prints goes to stderr, even from C.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as out:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        try:
            for result in measure(options):
                out.write(json.dumps(result) + "\n")
                out.flush()
        except SeedbedError as error:
            sys.stderr.write(f"{PROG}: error: {' '.join(str(error).split())}\n")
            return 1
    return 0


def measure(options: MeasuringOptions) -> Iterator[dict[str, Any]]:
    """The objects to print.

    Raises:
        EnvironmentFailure: the environment cannot be made, or failed.
        RequestError: the server did not answer.
    """
    assert options.env is not None
    for index, size in enumerate(options.sizes):
        with closing(make_environment(options.env, size, seed=1)) as environment:
            spec = specs.from_spaces(environment.observation_space, environment.action_space)
            if index == 0:
                yield {"spec": MessageToDict(specs.to_proto(spec))}
            stepping = stepping_cost(environment, spec, options.seconds)
            message = message_cost(options, environment) if options.server else None
        yield {
            "environments": size,
            "seconds_per_step": stepping.seconds_per_step,
            "seconds_per_turn": stepping.seconds_per_turn,
            "seconds_per_message": message,
        }


def stepping_cost(environment: VectorEnvironment, spec: EnvironmentSpec, seconds: float) -> Stepping:
    """CPU time of stepping with random actions, for `seconds` of it after a quarter to warm up."""
    rng = np.random.default_rng(1)
    num_envs = len(environment.reset().first)
    actions = [random_actions(spec.action, num_envs, rng) for _ in range(64)]
    turns = 0

    def step() -> int:
        nonlocal turns
        turns += 1
        timestep = environment.step(actions[turns % len(actions)])
        return num_envs - int(timestep.first.sum())

    _repeat(step, seconds / 4)
    turns, began = 0, time.process_time()
    steps = _repeat(step, seconds)
    spent = time.process_time() - began
    return Stepping(spent / steps, spent / turns)


def message_cost(options: MeasuringOptions, environment: VectorEnvironment) -> float:
    """CPU seconds of this process for a message and its answer: the same step again and again."""
    assert options.server is not None
    shown = environment.reset()
    num_envs = len(shown.first)
    no = np.zeros(num_envs, bool)
    again = transition(shown.observation, np.ones(num_envs, np.float32), no, no)
    with InferenceClient(
        options.server,
        environment.observation_space,
        environment.action_space,
        num_environments=num_envs,
        retry=RetryPolicy(give_up_when=lambda: bool(options.parent) and os.getppid() != options.parent),
        name="measuring",
    ) as client:
        client.act(shown)
        # Connections and caches settle.
        for _ in range(options.uncounted_messages - 1):
            client.act(again)
        began = time.process_time()
        for _ in range(options.messages):
            client.act(again)
        return (time.process_time() - began) / options.messages


def random_actions(action: ArraySpec, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Legal actions [rows, *shape]."""
    assert action.minimum is not None
    assert action.maximum is not None
    shape = (rows, *action.shape)
    if action.categorical:
        chosen = rng.integers(action.minimum, action.maximum, shape, endpoint=True)
        return chosen.astype(action.dtype)
    low, high = np.maximum(action.minimum, -MAX_ACTION), np.minimum(action.maximum, MAX_ACTION)
    return rng.uniform(low, high, shape).astype(action.dtype)


def _repeat(call: Callable[[], int], seconds: float) -> int:
    """Call for so much CPU time; the sum of what the calls return."""
    ends = time.process_time() + seconds
    total, calls = 0, 0
    while calls < MIN_CALLS or time.process_time() < ends:
        total += call()
        calls += 1
    return total


if __name__ == "__main__":
    sys.exit(main())
