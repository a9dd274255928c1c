"""Everything breaks at random, and nothing may be lost that need not be.

    python -m benchmarks.chaos [--minutes 10] [--actors 8] [--seed 1] [--json]

A real learner and real actors, each behind a proxy of its own. First all is quiet, which gives a rate;
then the learner is killed and comes back, which gives the time to 90 % of that rate. Then for so many
minutes, at random: actors are killed with SIGKILL, ended with SIGTERM or stopped with SIGSTOP, their
streams are cut, reset or left half-open, their networks are down or slow, and the learner is killed. At
the end the learner gets a target of environment steps, reaches it, and everybody ends.

The environment numbers every row, and the learner records what it is answered and trained on. Of these
records `benchmarks.faults.proof` proves that no step was trained on twice, out of order, or with another
environment's, that no unroll has a hole, and that what was lost are the unfinished unrolls of leases
that ended, as many as the learner counts, and what a killed learner held. Status 1 if not.
"""

import heapq
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine, output
from benchmarks.faults.cluster import ENDLESS, ActorProcess, Cluster, ClusterFailure, Settings
from benchmarks.faults.ledger import STEPS, Event
from benchmarks.faults.proof import Proof
from benchmarks.measure import Meter, Window
from protos.options import check_ranges, option, parse

RECOVERED = 0.9
"""Part of the former rate at which a restarted learner counts as back."""

RATE_SECONDS = 1.0
"""Length of the windows in which the rate after a restart is counted."""


@dataclass(frozen=True)
class ChaosOptions:
    """How much is broken, and for how long."""

    minutes: float = option(10.0, "minutes of faults", above=0)
    actors: int = option(8, "actor processes", at_least=2)
    envs: int = option(2, "environments of each", at_least=1)
    seed: int = option(1, "which faults come when", at_least=0)
    lease_seconds: float = option(5.0, "the learner's --lease-seconds", above=0)
    quiet_seconds: float = option(10.0, "seconds without faults, for the rate before a restart", above=0)
    fault_seconds: float = option(1.0, "mean seconds between two faults", above=0)
    learner_seconds: float = option(60.0, "mean seconds between two deaths of the learner", above=0)
    target_seconds: float = option(
        20.0, "how far away the target is at the end: steps of so many quiet seconds", above=0
    )
    json: bool = option(False, "print one JSON object on the last line")

    def __post_init__(self) -> None:
        check_ranges(self)


class Faults:
    """Breaks a cluster at random. What lasts, such as a network that is down, is mended in time."""

    def __init__(self, cluster: Cluster, options: ChaosOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._random = random.Random(options.seed)
        self._mending: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._broken: set[int] = set()
        """actors that something lasting is done to"""
        self._kinds: dict[Callable[[ActorProcess], object], float] = {
            cluster.kill_actor: 2.0,
            self._end: 1.0,
            cluster.reset_streams: 3.0,
            cluster.cut_streams: 3.0,
            cluster.half_open: 1.0,
            self._stop: 2.0,
            self._sever: 2.0,
            self._delay: 1.0,
        }

    def run(self, seconds: float) -> None:
        """Break things for so long, then mend all."""
        ends = time.monotonic() + seconds
        next_fault = time.monotonic()
        # One death at least, however short the time.
        learner_dies = time.monotonic() + min(self._about(self._options.learner_seconds), seconds / 2)
        while (now := time.monotonic()) < ends:
            while self._mending and self._mending[0][0] <= now:
                heapq.heappop(self._mending)[2]()
            if now >= learner_dies:
                self._cluster.kill_learner()
                learner_dies = now + self._about(self._options.learner_seconds)
            if now >= next_fault:
                self._break_one()
                next_fault = now + self._about(self._options.fault_seconds)
            self._cluster.poll()
            time.sleep(0.02)  # Faults come by the clock: how often to look at it.
        while self._mending:
            heapq.heappop(self._mending)[2]()

    def _break_one(self) -> None:
        whole = [actor for actor in self._cluster.actors if actor.index not in self._broken]
        if whole:
            (kind,) = self._random.choices(list(self._kinds), list(self._kinds.values()))
            kind(self._random.choice(whole))

    def _about(self, seconds: float) -> float:
        return self._random.uniform(0.5, 1.5) * seconds

    def _end(self, actor: ActorProcess) -> None:
        # One that is still starting has no handler of signals yet: SIGTERM would not end it in order.
        if self._cluster.rows[actor.incarnation]:
            self._cluster.end_actor(actor)

    def _stop(self, actor: ActorProcess) -> None:
        self._cluster.stop_actor(actor)
        self._mend(actor, lambda: self._cluster.continue_actor(actor))

    def _sever(self, actor: ActorProcess) -> None:
        self._cluster.sever(actor)
        if self._random.random() < 0.5:
            # With its connections: it looks for others, and finds none for a while.
            actor.proxy.reset()
        self._mend(actor, actor.proxy.heal)

    def _delay(self, actor: ActorProcess) -> None:
        self._cluster.delay(actor, self._random.uniform(0.01, 0.2))
        self._mend(actor, lambda: self._cluster.delay(actor, 0))

    def _mend(self, actor: ActorProcess, mend: Callable[[], object]) -> None:
        """Mend it later: within the lease, or after it."""

        def mended() -> None:
            mend()
            self._broken.discard(actor.index)

        self._broken.add(actor.index)
        at = time.monotonic() + self._random.uniform(0.2, 2.0) * self._options.lease_seconds
        heapq.heappush(self._mending, (at, next(self._numbers), mended))


@dataclass(frozen=True)
class Restart:
    """How the learner came back after SIGKILL; seconds since the new process's start."""

    rate_before: float
    """environment steps a second"""
    first_answer_seconds: float
    """until it answered a step: it serves, and the first actor is back"""
    recovered_seconds: float
    """until the end of the first window with 90 % of the rate before"""


def measure_restart(cluster: Cluster, quiet_seconds: float) -> Restart:
    """Kill the learner in a quiet cluster, and watch it come back.

    Raises:
        ClusterFailure: it does not.
    """
    before = _watch(cluster, quiet_seconds)
    rate = before / quiet_seconds
    cluster.until_saved()
    cluster.kill_learner()
    learner = cluster.learner
    arrived: list[tuple[float, int]] = []

    def recovered() -> bool:
        arrived[:] = [(event.time, len(event.payload)) for event in _steps(learner.events[-1])]
        return first_window(arrived, RECOVERED * rate) is not None

    cluster.until(recovered, f"{RECOVERED:.0%} of {rate:,.0f} steps a second")
    end = first_window(arrived, RECOVERED * rate)
    assert end is not None
    began = learner.started_at
    return Restart(rate, arrived[0][0] - began, end - began)


def _watch(cluster: Cluster, seconds: float) -> int:
    """Rows that are answered in so many seconds."""
    rows, ends = 0, time.monotonic() + seconds
    cluster.poll()
    while time.monotonic() < ends:
        time.sleep(0.05)  # How fine the rate's time is; nothing waits for it.
        rows += sum(len(event.payload) for event in _steps(cluster.poll()))
    return rows


def _steps(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event.kind == STEPS]


def first_window(arrived: Sequence[tuple[float, int]], rate: float) -> float | None:
    """When the first window of `RATE_SECONDS` with at least `rate` rows a second ended."""
    rows, begin = 0, 0
    for when, count in arrived:
        rows += count
        while arrived[begin][0] <= when - RATE_SECONDS:
            rows -= arrived[begin][1]
            begin += 1
        if rows >= rate * RATE_SECONDS:
            return when
    return None


def measure(options: ChaosOptions, folder: Path) -> tuple[dict[str, Any], dict[str, Window]]:
    """The figures, and the window in which they were taken.

    Raises:
        ClusterFailure: a process ended by itself, or something did not happen in time.
    """
    settings = Settings(folder, options.actors, options.envs, options.lease_seconds)
    meter = Meter({})
    with Cluster(settings) as cluster:
        cluster.until_active()
        restart = measure_restart(cluster, options.quiet_seconds)
        cluster.until_active()
        Faults(cluster, options).run(60.0 * options.minutes)
        cluster.until_active()
        cluster.learner.terminate()
        cluster.poll(check=False)
        target = cluster.learner.env_steps() + int(restart.rate_before * options.target_seconds)
        cluster.learner.start(total_steps=target)
        proof = cluster.finish()
        reached = cluster.learner.env_steps()
    if not target <= reached < ENDLESS:
        proof.faults.append(f"expected {target} environment steps at the end, found {reached}")
    return _result(restart, cluster, proof, target, reached), {"everything": meter.stop()}


def _result(
    restart: Restart, cluster: Cluster, proof: Proof, target: int, reached: int
) -> dict[str, Any]:
    return {
        "lost_nothing": not proof.faults,
        "faults_found": proof.faults,
        "done": dict(cluster.counts),
        "figures": proof.figures,
        "target_env_steps": target,
        "env_steps": reached,
        "restart": {
            "rate_before": restart.rate_before,
            "first_answer_seconds": restart.first_answer_seconds,
            "recovered_seconds": restart.recovered_seconds,
        },
    }


def tables(options: ChaosOptions, result: dict[str, Any]) -> list[str]:
    """What to print."""
    restart = result["restart"]
    steps = [
        ["environment steps, target", result["target_env_steps"]],
        ["environment steps, reached", result["env_steps"]],
        *([name.replace("_", " "), count] for name, count in result["figures"].items()),
    ]
    back = [
        ["steps/s before", restart["rate_before"]],
        ["s from start to the first answer", restart["first_answer_seconds"]],
        ["s from start to 90 % of the rate", restart["recovered_seconds"]],
    ]
    verdict = (
        "nothing was lost" if result["lost_nothing"] else "LOST:\n" + "\n".join(result["faults_found"])
    )
    return [
        f"{options.minutes:g} minutes, {options.actors} actors x {options.envs} environments, "
        f"seed {options.seed}",
        output.table(("what was done", "times"), sorted(result["done"].items())),
        output.table(("transitions, and where they are", "number"), steps),
        output.table(("a restart of the learner", "value"), back),
        verdict,
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; the process's exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = parse(ChaosOptions, arguments, prog="benchmarks.chaos", description=__doc__ or "")
    where = machine.describe()
    with tempfile.TemporaryDirectory(prefix="seedbed-chaos-") as folder:
        try:
            result, windows = measure(options, Path(folder))
        except ClusterFailure as failure:
            print(f"benchmarks.chaos: error: {failure}", file=sys.stderr)
            return 1
    whole = output.whole("chaos", where, options, result, windows)
    output.show([*tables(options, result), output.warning(windows)], whole, options.json)
    return 0 if result["lost_nothing"] else 1


if __name__ == "__main__":
    sys.exit(main())
