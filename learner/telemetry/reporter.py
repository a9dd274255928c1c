"""The reporter thread: every interval, what happened in it goes to the display and the files."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from learner.telemetry.report import Report, metrics
from learner.telemetry.statistics import Registry

logger = logging.getLogger(__name__)

Sink = Callable[[Report, Mapping[str, Any]], None]
"""Takes the report and the flat metrics made of it: `RunDirectory.write_metrics`, `Display.show`."""


class Reporter:
    """Reports each interval, and once more at the end.

    Sinks are called by one thread, and are not closed here. `wait` stands for the event that ends the
    interval early, and says whether it was set; tests give their own.
    """

    def __init__(
        self,
        interval_seconds: float,
        build_report: Callable[[], Report],
        registry: Registry,
        sinks: Sequence[Sink],
        *,
        on_failure: Callable[[BaseException], None],
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self._interval_seconds = interval_seconds
        self._build_report = build_report
        self._registry = registry
        self._sinks = sinks
        self._on_failure = on_failure
        self._closing = threading.Event()
        self._wait = wait or self._closing.wait
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; intervals count from here."""
        # Daemon: a thread stuck in foreign code must not keep a failed process alive.
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)
        self._thread.start()

    def close(self, timeout_seconds: float = 30.0) -> None:
        """Report a last time and end the thread. Idempotent; does nothing before `start`."""
        self._closing.set()
        # A failure may close everything from this very thread.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_seconds)
            if self._thread.is_alive():
                logger.warning("the reporter did not end within %.0f s", timeout_seconds)

    def _run(self) -> None:
        try:
            while not self._wait(self._interval_seconds):
                self._report()
            self._report()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the owner hears of it
            self._on_failure(error)

    def _report(self) -> None:
        report = self._build_report()
        values = metrics(report, self._registry.snapshot())
        for sink in self._sinks:
            sink(report, values)
