"""The three things that training cannot do without, each alone: CPU time for one environment step.

Every function here is the body of a process, which it keeps on one core, with one thread for each of
TensorFlow's pools. It answers with a `Cost`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from actor.measuring import random_actions
from benchmarks.children import pin_to_one_core
from learner.config import LearnerOptions
from learner.planning.ready import random_unrolls, ready_batch
from learner.telemetry.logs import import_tensorflow
from protos import specs
from protos.specs import EnvironmentSpec

MIN_CALLS = 3


@dataclass(frozen=True)
class Cost:
    """CPU time of one part for one environment step."""

    seconds: float
    steps: int
    """environment steps that were measured"""


def environment_cost(
    connection: Connection, env: str, num_envs: int, warm_up_seconds: float, seconds: float
) -> None:
    """Steps `num_envs` environments with random actions. Answers with their spec, then the cost.

    Rows that only reset are work, but no environment steps.
    """
    from actor.environments import make_environment

    pin_to_one_core()
    environment = make_environment(env, num_envs, seed=1)
    spec = specs.from_spaces(environment.observation_space, environment.action_space)
    connection.send(spec)
    rng = np.random.default_rng(1)
    actions = [random_actions(spec.action, num_envs, rng) for _ in range(64)]
    environment.reset()
    turn = 0

    def step() -> int:
        nonlocal turn
        turn += 1
        timestep = environment.step(actions[turn % len(actions)])
        return num_envs - int(timestep.first.sum())

    connection.send(_measure(step, warm_up_seconds, seconds))
    environment.close()


def policy_cost(
    connection: Connection,
    options: LearnerOptions,
    spec: EnvironmentSpec,
    rows: int,
    warm_up_seconds: float,
    seconds: float,
) -> None:
    """Acts for ready-made batches of `rows`."""
    _, policy = _agent_and_policy(options, spec, rows)
    batch = ready_batch(spec, rows, rows, rows)

    def call() -> int:
        policy(batch)
        return rows

    connection.send(_measure(call, warm_up_seconds, seconds))


def training_cost(
    connection: Connection,
    options: LearnerOptions,
    spec: EnvironmentSpec,
    warm_up_seconds: float,
    seconds: float,
) -> None:
    """Learns from one ready-made batch, again and again."""
    agent, policy = _agent_and_policy(options, spec, 1)
    from learner.training.update import TracedUpdate, to_device

    update = TracedUpdate(agent, policy.layout, options.sample_length, options.batch_size)
    batch = to_device(random_unrolls(policy.layout, spec, options))
    steps = options.trained_length * options.batch_size

    def call() -> int:
        # Fetched, because a device may still be at work when the call returns.
        float(update(batch, 0.0)["loss"])
        return steps

    connection.send(_measure(call, warm_up_seconds, seconds))


def _agent_and_policy(options: LearnerOptions, spec: EnvironmentSpec, rows: int) -> tuple[Any, Any]:
    pin_to_one_core()
    import_tensorflow()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    from learner.agents.build import make_agent
    from learner.serving.policy_call import PolicyFunction

    agent = make_agent(options, spec, seed=options.seed)
    policy = PolicyFunction(
        agent.make_policy(),
        spec.observation,
        num_slots=rows,
        max_rows=rows,
        seed=options.seed,
        engine=options.policy_engine,
    )
    return agent, policy


def _measure(call: Callable[[], int], warm_up_seconds: float, seconds: float) -> Cost:
    """CPU time for each of the steps that `call` says it has done."""
    _repeat(call, warm_up_seconds)
    began = time.process_time()
    steps = _repeat(call, seconds)
    return Cost((time.process_time() - began) / steps, steps)


def _repeat(call: Callable[[], int], seconds: float) -> int:
    ends = time.process_time() + seconds
    steps, calls = 0, 0
    while calls < MIN_CALLS or time.process_time() < ends:
        steps += call()
        calls += 1
    return steps
