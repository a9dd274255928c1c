"""`seedbed plan`: what a deployment reaches, which resource saturates first, and what it costs."""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from learner.config import available_cores
from learner.planning.costs import MAX_ROWS, find_costs
from learner.planning.model import (
    Costs,
    Deployment,
    Prediction,
    policy_lag,
    predict,
)
from learner.planning.options import PlanOptions
from learner.planning.tables import show_table, text

MUCH_LAG = 30.0
"""Versions of policy lag that are said to be many: well below the 100 of the alert SeedbedPolicyLagHigh,
so that what is planned does not come near it."""


def plan(options: PlanOptions) -> int:
    """Find the costs, predict, and print.

    Returns:
        Exit status: 0.

    Raises:
        EnvironmentFailure: the environment cannot be made, or failed.
        ConfigError: the options do not fit the environment.
    """
    costs, calls = find_costs(options)
    deployment = deployment_of(options, available_cores())
    prediction = predict(costs, deployment)
    result = {
        "costs": asdict(costs),
        "policy_call_cpu_seconds": calls,
        **summarize(options, deployment, prediction),
    }
    if options.json:
        sys.stdout.write(json.dumps(result, allow_nan=False) + "\n")
    else:
        _show(options, costs, calls, deployment, prediction, result)
    return 0


def deployment_of(options: PlanOptions, here: int) -> Deployment:
    """The deployment that the options describe, `here` being this machine's cores."""
    cores = options.cores or here
    total = options.num_actors * options.envs_per_actor
    return Deployment(
        num_actors=options.num_actors,
        envs_per_actor=options.envs_per_actor,
        cores=(options.learner_cores or cores) if options.actor_cores else cores,
        actor_cores=options.actor_cores,
        inference_threads=options.inference_threads,
        max_rows=options.inference_batch_size or max(total, MAX_ROWS),
        bits_per_second=options.network_mbits * 1e6 if options.network_mbits else math.inf,
        lock_step=options.takes_turns,
    )


def summarize(options: PlanOptions, deployment: Deployment, prediction: Prediction) -> dict[str, Any]:
    """The prediction in a user's units, as JSON values."""
    frames = prediction.rate * options.frames_per_step
    lag = None if options.replays else _lag(options, deployment, prediction, options.batch_size)
    return {
        "env_steps_per_second": prediction.rate,
        "frames_per_second": frames,
        "frame_skip": options.frames_per_step,
        "bound_by": prediction.bound_by,
        "first_to_saturate": prediction.first,
        "capacities": dict(prediction.capacities),
        "utilisation": {name: prediction.utilisation(name) for name in prediction.capacities},
        "actors_fed": prediction.actors_fed,
        "mbits_per_second": prediction.bytes_per_second * 8 / 1e6,
        "inference_batch": prediction.batch,
        "actors_idle": prediction.actor_idle,
        "event_loop_busy": prediction.event_loop_busy,
        "inference_busy": prediction.inference_busy,
        "training_busy": prediction.training_busy,
        "policy_lag": lag,
        "price_per_billion_frames": price(options, deployment, frames),
    }


def _lag(options: PlanOptions, deployment: Deployment, prediction: Prediction, batch_size: int) -> float:
    """Versions of policy lag with batches of so many unrolls."""
    return policy_lag(deployment, prediction, batch_size, options.queue_capacity or batch_size)


def warn_of_lag(options: PlanOptions, deployment: Deployment, prediction: Prediction) -> str | None:
    """What to say of a policy lag of many versions; None if there are few, or a replay, which is old on
    purpose."""
    lag = _lag(options, deployment, prediction, options.batch_size)
    if options.replays or lag <= MUCH_LAG:
        return None
    batch_size = options.batch_size
    while _lag(options, deployment, prediction, batch_size) > MUCH_LAG:
        batch_size *= 2
    return (
        f"A policy lag of {text(lag)} versions is much: learning may get slower for each step, or "
        f"unstable.\nTake fewer environments, or --batch-size {batch_size}, which leaves "
        f"{text(_lag(options, deployment, prediction, batch_size))} (in a new run: it changes what is "
        "learned)."
    )


def price(options: PlanOptions, deployment: Deployment, frames_per_second: float) -> float | None:
    """Of 10^9 frames, in the currency of the prices; None where none is given.

    Actors that share the learner's machine pay for its cores.
    """
    cores = deployment.cores if deployment.shared else deployment.actor_cores
    hourly = cores * options.actor_core_price_per_hour + options.learner_price_per_hour
    return hourly * 1e9 / (frames_per_second * 3600) if hourly else None


def _show(
    options: PlanOptions,
    costs: Costs,
    calls: Mapping[int, float],
    deployment: Deployment,
    prediction: Prediction,
    result: Mapping[str, Any],
) -> None:
    where = (
        f"{deployment.cores:g} shared cores"
        if deployment.shared
        else f"{deployment.actor_cores:g} cores for actors, {deployment.cores:g} for the learner"
    )
    title = (
        f"{options.env}, {options.agent}: {options.num_actors} actors x {options.envs_per_actor} "
        f"environments, {where}"
    )
    show_table(title, ("what it costs", "microseconds"), _cost_rows(costs, calls, options))
    show_table(
        "What each resource could do alone",
        ("resource", "environment steps/s", "in use"),
        [
            [name, capacity, f"{100 * prediction.utilisation(name):.0f} %"]
            for name, capacity in sorted(prediction.capacities.items(), key=lambda item: item[1])
        ],
    )
    show_table("The deployment", ("", "predicted"), _result_rows(result, costs.on_event_loop))
    if (warning := warn_of_lag(options, deployment, prediction)) is not None:
        sys.stdout.write(f"{warning}\n")


def _cost_rows(costs: Costs, calls: Mapping[int, float], options: PlanOptions) -> list[list[Any]]:
    rows = options.envs_per_actor
    micro = {
        "a step of an environment, actor's CPU": costs.environment.at(rows) / rows,
        f"a message of {rows} environments, actor's CPU": costs.actor_message.at(rows),
        "the same, learner's CPU": costs.learner_message.at(rows),
        "of it, the event loop": costs.event_loop.at(rows),
        **{f"a policy call for {n}, learner's CPU": seconds for n, seconds in calls.items()},
        "a policy call's fixed part, learner's CPU": costs.policy_call.fixed,
        "a row of it": costs.policy_call.per_row,
        "training for a step, learner's CPU": costs.training,
        "a row of a policy call, accelerator": costs.accelerated_row,
        "training for a step, accelerator": costs.accelerated_training,
        "delay of a round trip, nobody's CPU": costs.delay,
    }
    # Zeros are work that another row's part does.
    table: list[list[Any]] = [[name, seconds * 1e6] for name, seconds in micro.items() if seconds]
    return [*table, ["bytes of a step on the wire", costs.wire.at(rows) / rows]]


def _result_rows(result: Mapping[str, Any], on_event_loop: bool) -> list[list[Any]]:
    def percent(name: str) -> str:
        return f"{100 * result[name]:.0f} %"

    rows: list[list[Any]] = [
        ["environment steps/s", result["env_steps_per_second"]],
        [f"frames/s (frame skip {result['frame_skip']})", result["frames_per_second"]],
        ["saturates first", result["first_to_saturate"]],
        ["held back by", result["bound_by"]],
        ["actors until the learner's threads are the limit", result["actors_fed"]],
        ["network, Mbit/s", result["mbits_per_second"]],
        ["rows of a policy call", result["inference_batch"]],
        ["actors idle", percent("actors_idle")],
        ["event loop busy", percent("event_loop_busy")],
        ["of it, inference" if on_event_loop else "inference busy", percent("inference_busy")],
        ["training busy", percent("training_busy")],
        ["policy lag, versions", result["policy_lag"]],
    ]
    cost = result["price_per_billion_frames"]
    return rows if cost is None else [*rows, ["price of 10^9 frames", cost]]
