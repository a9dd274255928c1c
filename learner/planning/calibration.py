"""What a short real run says about the costs of parts that were measured alone.

Alone, a part has the caches and the interpreter to itself, and never waits to be woken. In a run it
does not, and that costs what no part shows: time on the cores in Python and gRPC, and time in which
nobody works.
"""

import dataclasses

from learner.planning.model import Costs, Deployment, Line, capacities, round_trip, training_seconds
from learner.planning.trials import Trial

LEAST, MOST = 0.5, 6.0
"""A correction outside of these is a mistake of a measurement, not of the costs."""

UNBOUND = 0.9
"""Where a resource is busier than this, a long round trip is a wait for it."""


def calibrated(costs: Costs, trial: Trial, deployment: Deployment) -> Costs:
    """The costs corrected by a trial.

    What is done for each message and each policy call, whatever their size, is scaled so that all CPU
    time together is the trial's; what is done for each row, the environments and the update are
    arithmetic, and stay. What is then missing in the round trip becomes its delay.

    Args:
        costs: measured alone.
        trial: a run that succeeded.
        deployment: where that run was.
    """
    rows, batch = deployment.envs_per_actor, trial.batch or deployment.envs_per_actor
    if trial.actor_cpu is not None:
        message = costs.actor_message.at(rows) / rows
        factor = _factor(trial.actor_cpu - costs.environment.at(rows) / rows, message)
        costs = dataclasses.replace(costs, actor_message=_scaled(costs.actor_message, factor))
    if trial.learner_cpu is not None:
        overhead = costs.learner_message.at(rows) / rows + costs.policy_call.fixed / batch
        rest = costs.policy_call.per_row + costs.training
        factor = _factor(trial.learner_cpu - rest, overhead)
        costs = dataclasses.replace(
            costs,
            learner_message=_scaled(costs.learner_message, factor),
            event_loop=_scaled(costs.event_loop, factor),
            policy_call=Line(costs.policy_call.fixed * factor, costs.policy_call.per_row),
        )
    return dataclasses.replace(costs, delay=_delay(costs, trial, deployment))


def _factor(measured: float, alone: float) -> float:
    return min(max(measured / alone, LEAST), MOST) if alone > 0 else 1.0


def _scaled(line: Line, factor: float) -> Line:
    return Line(line.fixed * factor, line.per_row * factor)


def _delay(costs: Costs, trial: Trial, deployment: Deployment) -> float:
    """Seconds of a round trip of the trial that the costs do not explain."""
    if trial.rate >= UNBOUND * min(capacities(costs, deployment).values()):
        return 0.0
    took = deployment.environments / trial.rate
    if deployment.lock_step:
        took -= deployment.environments * training_seconds(costs)
    return max(took - round_trip(costs, deployment, trial.rate).seconds, 0.0)
