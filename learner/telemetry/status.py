"""What the status page shows, as JSON: one more consumer of the reports, and of what is open."""

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from learner.telemetry.episodes import WINDOW
from learner.telemetry.evaluations import Evaluation
from learner.telemetry.http_server import Response
from learner.telemetry.learning_curve import Curve, running_mean
from learner.telemetry.metrics_log import plain
from learner.telemetry.problems import Problems
from learner.telemetry.report import Report, SessionReport
from learner.telemetry.statistics import Clock
from learner.telemetry.verdict import verdict
from protos.version import version

MAX_SESSIONS = 200
"""Sessions that are listed one by one: of more, the slowest."""

MAX_VERSIONS = 20
"""Versions of clients that are counted one by one: of more, the most frequent."""

MAX_POINTS = 200
"""Points of the curve: as many as a small picture can show."""

MAX_EVALUATIONS = 100

FRESH_SECONDS = 1.0
"""An answer is made at most this often, however many ask."""

QUEUES = (
    ("Unrolls waiting for training", "queue/depth", "queue/capacity"),
    ("Environments waiting for the policy", "acting/rows_waiting", "acting/capacity"),
    ("Unrolls in the replay", "replay/unrolls", "replay/capacity"),
)
"""What is waited in, and the statistics that say how much does and how much may."""

_REFUSED = "serving/count_errors_"


class Status:
    """The run's state for people who look now and then.

    The reporter's thread calls `show`, the main thread `enter` and `follow`, the HTTP server's thread
    `response`. `_lock` guards every field.

    Args:
        env: the environment, if it has a name.
        agent: the algorithm.
        interval_seconds: seconds between two reports.
        sessions: what clients have open.
        problems: what the log complained of.
    """

    def __init__(
        self,
        *,
        env: str | None,
        agent: str,
        interval_seconds: float,
        sessions: Callable[[], Sequence[SessionReport]],
        problems: Problems,
        clock: Clock = time.monotonic,
    ) -> None:
        self._run = {
            "env": env,
            "agent": agent,
            "version": version(),
            "interval_seconds": interval_seconds,
        }
        self._sessions = sessions
        self._problems = problems
        self._clock = clock
        self._phase = "starting"
        self._curve: Callable[[], Curve] = lambda: Curve([], 1)
        self._evaluations: Callable[[], Sequence[Evaluation]] = lambda: []
        self._shown: dict[str, Any] = {}
        self._shown_at: float | None = None
        self._steps: Mapping[int, int] = {}
        self._checkpoints: tuple[float, float | None] = (0, None)
        self._answer: tuple[float, bytes] | None = None
        self._lock = threading.Lock()

    def enter(self, phase: str) -> None:
        """Say what the run is doing from now on."""
        with self._lock:
            self._phase = phase
            self._answer = None

    def follow(
        self, curve: Callable[[], Curve], evaluations: Callable[[], Sequence[Evaluation]]
    ) -> None:
        """Where returns come from, once there is a learner."""
        with self._lock:
            self._curve, self._evaluations = curve, evaluations

    def show(self, report: Report, values: Mapping[str, Any]) -> None:
        """Take in an interval: a sink of the reporter."""
        sessions = self._sessions()
        now = self._clock()
        with self._lock:
            seconds = now - self._shown_at if self._shown_at is not None else 0.0
            rates = {each.number: self._rate(each, seconds) for each in sessions}
            self._steps = {each.number: each.steps for each in sessions}
            age = values.get("checkpoints/age_seconds")
            self._checkpoints = values.get("checkpoints/saved", 0), None if age is None else now - age
            self._shown = {
                "report": {**asdict(report), "seconds_left": report.seconds_left},
                "verdict": verdict(report),
                "queues": _queues(values),
                "sessions": _sessions(sessions, rates),
                "refused": _refused(values),
            }
            self._shown_at = now

    def response(self) -> Response:
        """The JSON object, at most a second old."""
        with self._lock:
            now = self._clock()
            if self._answer is None or now - self._answer[0] >= FRESH_SECONDS:
                text = json.dumps(_finite(self._state(now)), allow_nan=False)
                self._answer = (now, text.encode())
            return Response(self._answer[1], "application/json")

    def _rate(self, session: SessionReport, seconds: float) -> float | None:
        """Steps a second since the last report; None for a session that has come since."""
        before = self._steps.get(session.number)
        return (session.steps - before) / seconds if before is not None and seconds > 0 else None

    def _state(self, now: float) -> dict[str, Any]:
        saved, since = self._checkpoints
        return {
            "run": {**self._run, "phase": self._phase},
            "age_seconds": None if self._shown_at is None else now - self._shown_at,
            # As Prometheus has it: before the first one, since this process began.
            "checkpoint_age_seconds": None if since is None else now - since,
            "checkpoints_saved": saved,
            "curve": _points(self._curve()),
            "evaluations": [each._asdict() for each in self._evaluations()[-MAX_EVALUATIONS:]],
            "problems": [each._asdict() for each in self._problems.recent()],
            **self._shown,
        }


def _queues(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": name, "depth": values[depth], "capacity": values[capacity]}
        for name, depth, capacity in QUEUES
        if depth in values
    ]


def _refused(values: Mapping[str, Any]) -> dict[str, Any]:
    """How many streams ended in an error, by the error's gRPC status."""
    return {key.removeprefix(_REFUSED): n for key, n in values.items() if key.startswith(_REFUSED)}


def _sessions(sessions: Sequence[SessionReport], rates: Mapping[int, float | None]) -> dict[str, Any]:
    def by_rate(session: SessionReport) -> float:
        rate = rates[session.number]
        return math.inf if rate is None else rate / session.environments

    listed = sorted(sessions, key=by_rate)[:MAX_SESSIONS]
    return {
        "total": len(sessions),
        "versions": Counter(each.client_version for each in sessions).most_common(MAX_VERSIONS),
        # In an order that stays from one look to the next.
        "listed": [
            {**each._asdict(), "steps_per_second": rates[each.number]}
            for each in sorted(listed, key=lambda each: (each.client, each.number))
        ],
    }


def _points(curve: Curve) -> list[tuple[int, float, float]]:
    """(environment steps, mean return, that of the last 100) of at most `MAX_POINTS` moments."""
    returns = [point.mean_return for point in curve.points]
    smooth = running_mean(returns, max(WINDOW // curve.episodes_per_point, 1))
    stride = math.ceil(len(returns) / MAX_POINTS) or 1
    # From the end, so that the newest is always there.
    ends = range(len(returns), 0, -stride)
    return [
        (curve.points[end - 1].env_steps, _mean(returns[max(end - stride, 0) : end]), smooth[end - 1])
        for end in reversed(ends)
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _finite(value: Any) -> Any:
    """`value` as JSON can hold it: what is not finite becomes null."""
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return plain(value)
