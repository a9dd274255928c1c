"""The costs of all parts: given by hand, or measured on this machine, here and in an actor process."""

import dataclasses
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from learner.config import available_cores
from learner.operation_threads import set_operation_threads
from learner.planning.calibration import calibrated
from learner.planning.messages import ActorCosts, measure_actor
from learner.planning.model import Costs, Deployment, Line
from learner.planning.options import COST_OPTIONS, PlanOptions
from learner.planning.ready import actions_message, step_message
from learner.planning.trials import TrialProcess
from learner.telemetry.logs import import_tensorflow
from protos.specs import EnvironmentSpec

if TYPE_CHECKING:
    from learner.planning.computing import ComputeCosts

logger = logging.getLogger(__name__)

SETTLE_SECONDS, RUN_SECONDS = 1.5, 4.0
"""Of the short run."""

FRAMING_BYTES = 80
"""What HTTP/2 and gRPC add to a message and its answer, as the `wire` benchmark counts it."""

SEQUENCE = 10_000
"""A step in the middle of a session, for the sizes of messages."""

MAX_ROWS = 256
"""Most rows of a policy call, as of a learner that does not know how many actors come."""

_FREE = Line(0.0, 0.0)

NOTHING = Costs(
    environment=_FREE,
    actor_message=_FREE,
    learner_message=_FREE,
    event_loop=_FREE,
    policy_call=_FREE,
    training=0.0,
    wire=_FREE,
)
"""Costs that are all to be given by hand."""


def find_costs(options: PlanOptions) -> tuple[Costs, dict[int, float]]:
    """What the parts cost, and, where they were measured, CPU seconds of policy calls by rows.

    Raises:
        EnvironmentFailure: the environment cannot be made, or failed.
        ConfigError: the options do not fit the environment.
    """
    if not options.measures:
        return with_given(NOTHING, options), {}
    assert options.env is not None
    actor = measure_actor(options.env, actor_sizes(options.envs_per_actor), options.seconds)
    import_tensorflow()
    # As the learner that is planned for has it.
    set_operation_threads(options.tf_threads)
    from learner.planning.computing import measure_compute

    total = options.num_actors * options.envs_per_actor
    most = most_rows(options)
    sizes = call_sizes(options.envs_per_actor, min(total, most))
    compute = measure_compute(options, actor.spec, sizes, options.seconds, max_rows=most)
    calls = {rows: timed.cpu for rows, timed in compute.policy_calls.items()}
    costs = combine(actor, compute, options)
    if options.calibrate and not compute.accelerated:
        costs = _calibrate(costs, options)
    return with_given(costs, options), calls


def _calibrate(costs: Costs, options: PlanOptions) -> Costs:
    """The costs corrected by a short run with as many actors as this machine has cores."""
    cores = available_cores()
    run = dataclasses.replace(options, num_actors=min(options.num_actors, cores))
    logger.info("a short run, by which to correct what the parts cost alone")
    with TrialProcess() as process:
        trial = process.run(run, SETTLE_SECONDS, RUN_SECONDS)
    if trial.error:
        logger.warning("costs are those of the parts alone, for the short run failed: %s", trial.error)
        return costs
    here = Deployment(run.num_actors, run.envs_per_actor, cores=cores, lock_step=options.takes_turns)
    return calibrated(costs, trial, here)


def actor_sizes(envs_per_actor: int) -> list[int]:
    """Numbers of environments to measure an actor with: a line through two of them tells what a message
    costs whatever is in it."""
    return sorted({max(envs_per_actor // 4, 1), envs_per_actor})


def most_rows(options: PlanOptions) -> int:
    """Most rows of a policy call, as the learner chooses them: it knows the actors that it starts."""
    total = options.num_actors * options.envs_per_actor
    return options.inference_batch_size or (MAX_ROWS if options.actor_cores else total)


def call_sizes(envs_per_actor: int, total: int) -> list[int]:
    """Rows of policy calls to measure, from one actor's message to the largest batch."""
    largest = max(min(total, MAX_ROWS), envs_per_actor)
    return sorted({max(envs_per_actor // 4, 1), envs_per_actor, largest})


def combine(actor: ActorCosts, compute: "ComputeCosts", options: PlanOptions) -> Costs:
    """What was measured, as the model takes it."""
    cpu = Line.through({rows: timed.cpu for rows, timed in compute.policy_calls.items()})
    wall = Line.through({rows: timed.wall for rows, timed in compute.policy_calls.items()})
    largest, update = compute.policy_calls[max(compute.policy_calls)], compute.update
    answers = actor.at_once if compute.by_numpy else actor.by_thread
    share = 1 / steps_per_update(options)
    costs = Costs(
        environment=actor.environment,
        actor_message=actor.actor_message,
        learner_message=answers.learner_message,
        event_loop=answers.event_loop,
        policy_call=cpu,
        training=update.cpu * share,
        wire=wire_bytes(actor.spec, options.envs_per_actor),
        # Where others take this machine's time too, fewer: never less than the thread itself.
        policy_parallelism=max(largest.cpu / largest.wall, 1.0),
        training_parallelism=max(update.cpu / update.wall, 1.0),
        on_event_loop=compute.by_numpy,
    )
    if compute.accelerated:
        costs = dataclasses.replace(costs, training=0.0, accelerated_training=update.wall * share)
    if compute.accelerated and not compute.by_numpy:
        costs = dataclasses.replace(
            costs, policy_call=Line(cpu.fixed, 0.0), accelerated_row=wall.per_row
        )
    return costs


def steps_per_update(options: PlanOptions) -> float:
    """Environment steps that are made for each update."""
    trained = options.batch_size * options.trained_length
    return trained / options.samples_per_insert if options.replays else trained


def wire_bytes(spec: EnvironmentSpec, envs_per_actor: int) -> Line:
    """Bytes of a message and its answer, both ways."""
    return Line.through(
        {
            rows: step_message(spec, rows, SEQUENCE).ByteSize()
            + actions_message(spec, rows, SEQUENCE).ByteSize()
            + FRAMING_BYTES
            for rows in actor_sizes(envs_per_actor)
        }
    )


def with_given(costs: Costs, options: PlanOptions) -> Costs:
    """The costs with those in place that the user has given.

    A row's and a step's figures are those of an accelerator, which the CPU then does not do; for an
    accelerator inference threads wait.
    """
    given: Mapping[str, float] = {
        name: value if name == "bytes_per_step" else value / 1e6
        for name in COST_OPTIONS
        if (value := getattr(options, name)) is not None
    }
    for name, value in given.items():
        costs = dataclasses.replace(costs, **_changes(costs, name, value))
    return costs


def _changes(costs: Costs, name: str, value: float) -> Mapping[str, Any]:
    changes: dict[str, dict[str, Any]] = {
        "environment_us_per_step": {"environment": Line(0.0, value)},
        "actor_us_per_message": {"actor_message": Line(value, 0.0)},
        "learner_us_per_message": {
            "learner_message": Line(value, 0.0),
            "event_loop": Line(value, 0.0),
        },
        "inference_us_per_call": {"policy_call": Line(value, costs.policy_call.per_row)},
        "inference_us_per_row": {
            "policy_call": Line(costs.policy_call.fixed, 0.0),
            "accelerated_row": value,
            "on_event_loop": False,
        },
        "training_us_per_step": {"training": 0.0, "accelerated_training": value},
        "bytes_per_step": {"wire": Line(0.0, value)},
    }
    return changes[name]
