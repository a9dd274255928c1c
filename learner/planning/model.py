"""What a deployment of N actors reaches, from what each part costs: bottlenecks and round trips.

A closed queueing network. Each actor has one message in flight: it steps its M environments, sends
them, and waits for the event loop, for the policy call that runs, and for its own. Two kinds of limits
follow, and the rate is what both allow:

- no resource does more than it can: rate <= capacity (the roofline);
- N actors with one message each make N / (time of a round trip) messages a second, where waiting grows
  with the load (Reiser and Lavenberg, 1980: mean value analysis, here with Schweitzer's approximation,
  by which an arriving message finds a part (N - 1) / N of the mean queue).

Policy calls batch without a timer: a call takes what has come while the last one ran. Who makes them
works by turns: a turn of an inference thread is a policy call; where the event loop makes the calls
itself, its turn is to read messages, to call, and to send the answers, and there are no other threads
to wait for. All else is the same for both: turns are of so many messages as came during the last one.

Training does not hold up acting until the unroll queue is full, so it counts as a capacity and as load
on the cores. All times are in seconds, all rates in steps of one environment a second.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

NEAR = 0.8
"""A resource that is busy for this part of its time sets the pace."""

ITERATIONS = 60
"""Of the bisection: more halvings than a float has bits to tell apart."""

SETTLING = 40
"""Steps in which the size of a turn is found. It converges slowly where messages cost much and a call
little: each further message of a turn lets nearly another one come."""

UNLIMITED = 1_000_000
"""More actors than any learner feeds."""

ROUND_TRIPS = "round trips"
"""What limits the rate where no resource does: actors wait for answers that nobody is late with."""


@dataclass(frozen=True)
class Line:
    """Cost of something done for n rows at once: `fixed + per_row * n`."""

    fixed: float
    per_row: float

    def at(self, rows: float) -> float:
        return self.fixed + self.per_row * rows

    @staticmethod
    def through(measured: Mapping[int, float]) -> "Line":
        """The line through the costs at the fewest and at the most rows, with neither part below 0."""
        few, many = min(measured), max(measured)
        if few == many:
            return Line(0.0, measured[few] / few)
        slope = max((measured[many] - measured[few]) / (many - few), 0.0)
        fixed = min(max(measured[few] - slope * few, 0.0), measured[many])
        return Line(fixed, (measured[many] - fixed) / many)


@dataclass(frozen=True)
class Costs:
    """What each part costs alone: CPU seconds of one core, but for the accelerator's."""

    environment: Line
    """a step of n environments, in the actor"""
    actor_message: Line
    """a message of n rows and its answer, in the actor"""
    learner_message: Line
    """the same in the learner, in all its threads"""
    event_loop: Line
    """of it, the event loop's thread"""
    policy_call: Line
    """a policy call for n rows, and what is done with its answer; with an accelerator the CPU's part"""
    training: float
    """an update, for each environment step; 0 where the accelerator does it"""
    wire: Line
    """bytes of a message of n rows and its answer, both ways"""
    delay: float = 0.0
    """of a round trip, while nobody works: threads that wake up, and wait for Python's lock"""
    policy_parallelism: float = 1.0
    """cores that a policy call keeps busy"""
    training_parallelism: float = 1.0
    """cores that an update keeps busy"""
    accelerated_row: float = 0.0
    """accelerator seconds for a row of a policy call; 0 where the CPU does it"""
    accelerated_training: float = 0.0
    """accelerator seconds of an update, for each environment step"""
    on_event_loop: bool = False
    """whether the event loop makes the policy calls itself, instead of inference threads"""

    def turn_seconds(self, messages: float, rows: float) -> float:
        """How long it keeps the thread that calls the policy to do so for `messages` of `rows` each."""
        call = _call_seconds(self, messages * rows)
        return call + messages * self.event_loop.at(rows) if self.on_event_loop else call


@dataclass(frozen=True)
class Deployment:
    """Who runs where."""

    num_actors: int
    """N, processes"""
    envs_per_actor: int
    """M"""
    cores: float
    """of the machine that both share, or of the learner's"""
    actor_cores: float = 0.0
    """of the actors' own machines together; 0 if they share the learner's"""
    inference_threads: int = 1
    """that call the policy, unless the event loop does"""
    max_rows: int = 65_536
    """most rows of a policy call"""
    bits_per_second: float = math.inf
    """of the network between actors and learner, both ways together"""
    lock_step: bool = False
    """acting waits for training, and training for acting: their times add up"""

    @property
    def shared(self) -> bool:
        return self.actor_cores <= 0

    @property
    def environments(self) -> int:
        return self.num_actors * self.envs_per_actor


@dataclass(frozen=True)
class Prediction:
    """What the deployment reaches."""

    rate: float
    """environment steps a second"""
    capacities: Mapping[str, float]
    """by resource, the rate at which it is busy all the time"""
    bound_by: str
    """the resource that holds back the others, or `ROUND_TRIPS`"""
    batch: float
    """rows of a policy call"""
    actor_idle: float
    """part of its time that an actor waits for answers"""
    event_loop_busy: float
    inference_busy: float
    training_busy: float
    """parts of its time that the thread works; of the event loop's, inference is a part where it calls
    the policy"""
    bytes_per_second: float
    """on the wire, both ways"""
    actors_fed: int
    """actors of this size after which the learner is the limit; more wait for it. 0 if it is
    already the limit of one. Where both share a machine, whose cores the actors take, it is the limit
    of the threads alone."""

    @property
    def first(self) -> str:
        """The resource that saturates first."""
        return min(self.capacities, key=lambda name: self.capacities[name])

    def utilisation(self, resource: str) -> float:
        """Part of the resource that is in use, 0 to 1."""
        return self.rate / self.capacities[resource]


def predict(costs: Costs, deployment: Deployment) -> Prediction:
    """What `deployment` reaches where things cost `costs`."""
    limits = capacities(costs, deployment)
    highest = min(limits.values())
    low, high = 0.0, highest
    for _ in range(ITERATIONS):
        middle = (low + high) / 2
        # By Little's law, messages in flight; there are N.
        trip = round_trip(costs, deployment, middle)
        enough = middle / deployment.envs_per_actor * trip.seconds < deployment.num_actors
        low, high = (middle, high) if enough else (low, middle)
    trip = round_trip(costs, deployment, low)
    training = training_seconds(costs) * trip.learner_stretch
    rate = 1 / (1 / low + training) if deployment.lock_step else low
    first = min(limits, key=lambda name: limits[name])
    rows = deployment.envs_per_actor
    acting = (costs.environment.at(rows) + costs.actor_message.at(rows)) * trip.actor_stretch
    whole = deployment.num_actors * rows / rate
    return Prediction(
        rate=rate,
        capacities=limits,
        bound_by=first if rate >= NEAR * highest else ROUND_TRIPS,
        batch=trip.batch * rows,
        actor_idle=max(1 - acting / whole, 0.0),
        event_loop_busy=trip.event_loop_busy * rate / low,
        inference_busy=trip.inference_busy * rate / low,
        training_busy=min(rate * training, 1.0),
        bytes_per_second=rate / rows * costs.wire.at(rows),
        actors_fed=_actors_fed(costs, deployment),
    )


def policy_lag(
    deployment: Deployment, prediction: Prediction, batch_size: int, queue_capacity: int
) -> float:
    """Versions between acting and training, where each unroll is trained on once.

    While an environment fills an unroll, all others fill theirs, and a step is on average half an
    unroll old when its own is finished: N M / (2 B) batches. Then it waits for the rest of its batch;
    or, where training is the limit, for a full queue and the batch that is prepared.
    """
    training = prediction.bound_by in ("training", "accelerator")
    waiting = 1 + queue_capacity / batch_size if training else 0.5
    return deployment.environments / (2 * batch_size) + waiting


def capacities(costs: Costs, deployment: Deployment) -> dict[str, float]:
    """By resource, how many steps a second it could do if nothing else cost anything."""
    rows = deployment.envs_per_actor
    most = _most_messages(costs, deployment)
    acting = (costs.environment.at(rows) + costs.actor_message.at(rows)) / rows
    call = costs.policy_call.at(most * rows) / (most * rows)
    turn = costs.turn_seconds(most, rows) / (most * rows)
    learning = costs.learner_message.at(rows) / rows + call + costs.training
    seconds = {
        "actor processes": acting / deployment.num_actors,
        "event loop": turn if costs.on_event_loop else costs.event_loop.at(rows) / rows,
        "inference threads": 0.0 if costs.on_event_loop else turn / deployment.inference_threads,
        "training": training_seconds(costs),
        "accelerator": costs.accelerated_row + costs.accelerated_training,
        "network": costs.wire.at(rows) / rows * 8 / deployment.bits_per_second,
    }
    if deployment.shared:
        seconds["cores"] = (acting + learning) / deployment.cores
    else:
        seconds["actor cores"] = acting / deployment.actor_cores
        seconds["learner cores"] = learning / deployment.cores
    return {name: 1 / each for name, each in seconds.items() if each > 0}


@dataclass(frozen=True)
class RoundTrip:
    """From one step of an actor to its next, at a given rate."""

    seconds: float
    batch: float
    """messages of a policy call"""
    event_loop_busy: float
    inference_busy: float
    actor_stretch: float
    learner_stretch: float
    """how much longer work takes than alone, because cores are shared"""


def round_trip(costs: Costs, deployment: Deployment, rate: float) -> RoundTrip:
    """How long an actor's round trip takes while all together make `rate` steps a second."""
    rows = deployment.envs_per_actor
    messages = rate / rows
    acting = costs.environment.at(rows) + costs.actor_message.at(rows)
    loop = costs.event_loop.at(rows)
    callers = _callers(costs, deployment)
    batch, stretch = _turns(costs, deployment, messages)
    turn = costs.turn_seconds(batch, rows) * stretch[1]
    call = _call_seconds(costs, batch * rows) * stretch[1]
    busy = min(messages / callers * turn / batch, 1.0)
    others = (deployment.num_actors - 1) / deployment.num_actors
    if costs.on_event_loop:
        queued = max(costs.learner_message.at(rows) - loop, 0.0) * stretch[1]
    else:
        # Waiting for an event loop that has turns of its own.
        queued = costs.learner_message.at(rows) * stretch[1] / max(1 - messages * loop * others, 1e-9)
    # Half a turn of others.
    residual = busy * others * turn / 2
    travel = costs.wire.at(rows) * 8 / deployment.bits_per_second
    return RoundTrip(
        seconds=acting * stretch[0] + queued + residual + turn + travel + costs.delay,
        batch=batch,
        event_loop_busy=busy if costs.on_event_loop else min(messages * loop * stretch[1], 1.0),
        inference_busy=min(messages / callers * call / batch, 1.0),
        actor_stretch=stretch[0],
        learner_stretch=stretch[1],
    )


def _turns(costs: Costs, deployment: Deployment, messages: float) -> tuple[float, tuple[float, float]]:
    """How many messages a turn takes where so many come in a second, and how far work is stretched."""
    rows = deployment.envs_per_actor
    batch, stretch = 1.0, (1.0, 1.0)
    for _ in range(SETTLING):
        stretch = _stretch(costs, deployment, messages, batch)
        turn = costs.turn_seconds(batch, rows) * stretch[1]
        arrived = messages / _callers(costs, deployment) * turn
        batch = min(max((batch + max(arrived, 1.0)) / 2, 1.0), _most_messages(costs, deployment))
    return batch, stretch


def _stretch(costs: Costs, deployment: Deployment, messages: float, batch: float) -> tuple[float, float]:
    """How much longer the actors' and the learner's work takes than on cores of their own."""
    rows = deployment.envs_per_actor
    acting = costs.environment.at(rows) + costs.actor_message.at(rows)
    answering = costs.learner_message.at(rows) + costs.policy_call.at(batch * rows) / batch
    training = costs.training * rows
    others = (deployment.num_actors - 1) / deployment.num_actors
    left = deployment.cores - messages * training
    if deployment.shared:
        both = _slowdown(left - messages * (acting + answering) * others)
        return both, both
    # However many messages wait, no more threads than these run: the event loop's and inference's.
    threads = 1 if costs.on_event_loop else 1 + deployment.inference_threads
    return (
        _slowdown(deployment.actor_cores - messages * acting * others),
        min(_slowdown(left - messages * answering * others), _slowdown(left / threads)),
    )


def _slowdown(cores: float) -> float:
    """Of a thread where so many cores are left for it: they share themselves out evenly."""
    return max(1.0, 1.0 / max(cores, 1e-9))


def _callers(costs: Costs, deployment: Deployment) -> int:
    """Threads that call the policy."""
    return 1 if costs.on_event_loop else deployment.inference_threads


def _most_messages(costs: Costs, deployment: Deployment) -> float:
    """Most messages in one policy call: those of all threads are never more than there are actors."""
    fitting = max(deployment.max_rows // deployment.envs_per_actor, 1)
    return min(max(deployment.num_actors / _callers(costs, deployment), 1.0), fitting)


def _call_seconds(costs: Costs, rows: float) -> float:
    """How long a policy call for so many rows keeps its thread."""
    if costs.accelerated_row:
        return costs.policy_call.fixed + costs.accelerated_row * rows
    return costs.policy_call.fixed + costs.policy_call.per_row * rows / costs.policy_parallelism


def training_seconds(costs: Costs) -> float:
    """How long training is busy for each environment step."""
    return costs.training / costs.training_parallelism + costs.accelerated_training


def _actors_fed(costs: Costs, deployment: Deployment) -> int:
    """How many actors it takes until the learner holds them back."""
    own = ("actor processes", "actor cores", "cores")
    # As many as fill its largest policy calls, if there are so many.
    limits = capacities(costs, dataclasses.replace(deployment, num_actors=UNLIMITED))
    learner = min((rate for name, rate in limits.items() if name not in own), default=math.inf)
    rows = deployment.envs_per_actor
    alone = rows / (
        costs.environment.at(rows)
        + costs.actor_message.at(rows)
        + costs.learner_message.at(rows)
        + _call_seconds(costs, rows)
    )
    return int(learner / alone) if math.isfinite(learner) else 0
