"""The run by HTTP (`--metrics-listen`): a page for people, the same as JSON, numbers for Prometheus."""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from learner.config import LearnerOptions
from learner.telemetry.evaluations import Evaluation
from learner.telemetry.http_server import HttpServer, Response
from learner.telemetry.learning_curve import Curve
from learner.telemetry.problems import Problems
from learner.telemetry.prometheus import CONTENT_TYPE, PrometheusMetrics
from learner.telemetry.report import SessionReport
from learner.telemetry.reporter import Sink
from learner.telemetry.statistics import Registry
from learner.telemetry.status import Status
from learner.telemetry.status_page import status_page


class StatusServer:
    """Shows the run to whoever asks; without `--metrics-listen` it listens nowhere, and shows nobody.

    Args:
        options: the run's.
        registry: of the parts, also of those that come later.
        sessions: what clients have open.
        on_failure: hears of a failure of the HTTP server.
    """

    def __init__(
        self,
        options: LearnerOptions,
        registry: Registry,
        sessions: Callable[[], Sequence[SessionReport]],
        *,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._listen = options.metrics_listen
        self._problems = Problems()
        self._status = Status(
            env=options.env,
            agent=options.agent,
            interval_seconds=options.log_interval_seconds,
            sessions=sessions,
            problems=self._problems,
        )
        self._prometheus = PrometheusMetrics(registry, env=options.env)
        self._on_failure = on_failure
        self._closing = ExitStack()

    def start(self) -> None:
        """Listen, if there is where.

        Raises:
            ConfigError: the address is malformed, unknown or taken.
        """
        if self._listen is None:
            return
        self._closing.enter_context(self._problems.attached(logging.getLogger()))
        http = HttpServer(
            self._listen,
            {
                "/": status_page,
                "/status.json": self._status.response,
                "/metrics": lambda: Response(self._prometheus.exposition(), CONTENT_TYPE),
            },
            on_failure=self._on_failure,
        )
        http.start()
        self._closing.callback(http.close)

    def close(self) -> None:
        """End the HTTP server. Idempotent; does nothing before `start`."""
        self._closing.close()

    def enter(self, phase: str) -> None:
        """Say what the run is doing from now on."""
        self._status.enter(phase)

    def follow(
        self, curve: Callable[[], Curve], evaluations: Callable[[], Sequence[Evaluation]]
    ) -> None:
        """Where returns come from, once there is a learner."""
        self._status.follow(curve, evaluations)

    def sinks(self) -> list[Sink]:
        """What the reporter tells of each interval."""
        return [] if self._listen is None else [self._status.show, self._prometheus.note]
