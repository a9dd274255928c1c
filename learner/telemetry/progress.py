"""How the run goes, for people: live on a terminal, plain lines elsewhere, or nothing."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from learner.telemetry.report import Report, return_text
from learner.telemetry.verdict import verdict

logger = logging.getLogger(__name__)


class Display(Protocol):
    """Shows a run's progress. Both methods belong to one thread at a time."""

    def show(self, report: Report, values: Mapping[str, Any]) -> None:
        """Show the interval. `values` are the flat metrics, for displays that show all of them."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was, with the last state on it. Idempotent."""
        ...


def make_display(mode: Literal["auto", "live", "plain", "none"], console: Console) -> Display:
    """The display that `--progress` asks for; auto is live on a terminal, else plain.

    Log lines must go through the same `console` (see `logs.configure_logging`), which prints them
    above the live display instead of through it.
    """
    if mode == "none":
        return NoDisplay()
    if mode == "live" or (mode == "auto" and console.is_terminal and not console.is_dumb_terminal):
        return LiveDisplay(console)
    return PlainDisplay()


class NoDisplay:
    """Shows nothing."""

    def show(self, report: Report, values: Mapping[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass


class PlainDisplay:
    """One line an interval, to the log or wherever `write` puts it."""

    def __init__(self, write: Callable[[str], None] = logger.info) -> None:
        self._write = write

    def show(self, report: Report, values: Mapping[str, Any]) -> None:
        self._write(line(report))

    def close(self) -> None:
        pass


class LiveDisplay:
    """A small table at the foot of the terminal, redrawn in place each interval."""

    def __init__(self, console: Console) -> None:
        # No refresh thread: the picture changes with the report, and log lines redraw it themselves.
        self._live = Live(console=console, auto_refresh=False)

    def show(self, report: Report, values: Mapping[str, Any]) -> None:
        self._live.start()
        self._live.update(_picture(report), refresh=True)

    def close(self) -> None:
        self._live.stop()


def line(report: Report) -> str:
    """The report in one line."""
    return (
        f"step {report.env_steps:,} of {report.total_steps:,} ({_percent_done(report)}), "
        f"{report.steps_per_second:,.0f} steps/s, {_episodes(report)}, {_batch(report)}, "
        f"policy lag {_lag(report)}, {_actors(report)}, {_left(report)} left; {verdict(report)}"
    )


def _picture(report: Report) -> Group:
    headline = Table.grid(padding=(0, 2))
    headline.add_row(
        f"step {report.env_steps:,} of {report.total_steps:,}",
        ProgressBar(total=report.total_steps, completed=report.env_steps, width=20),
        f"{_percent_done(report)}, {_left(report)} left",
    )
    # Short lines, for a terminal of 80 columns.
    acting = f"{report.steps_per_second:,.0f} steps/s   {_episodes(report)}"
    serving = f"{_actors(report)}   {_batch(report)}"
    queue = f"queue {report.queue_depth} of {report.queue_capacity}"
    learning = f"{queue}   policy lag {_lag(report)}   {_loss(report)}"
    return Group(
        headline, Text(acting), Text(serving), Text(learning), Text(verdict(report), style="bold")
    )


def _percent_done(report: Report) -> str:
    # A run ends with the update that passes its last step, so a few steps late.
    return f"{min(100 * report.env_steps / max(report.total_steps, 1), 100):.0f} %"


def _episodes(report: Report) -> str:
    if report.mean_return_100 is None:
        return "no episode yet"
    # Said as it is: before the 100th episode the mean is that of fewer.
    of, mean = min(report.episodes, 100), return_text(report.mean_return_100)
    evaluated = "" if report.evaluation is None else f", evaluated at {return_text(report.evaluation)}"
    return f"{report.episodes:,} episodes, mean return {mean} of the last {of}{evaluated}"


def _batch(report: Report) -> str:
    return f"inference batch {report.batch_mean:.1f} of {report.batch_max}"


def _lag(report: Report) -> str:
    return "-" if report.policy_lag is None else f"{report.policy_lag:.1f}"


def _loss(report: Report) -> str:
    return f"loss {report.training['loss']:.4g}" if "loss" in report.training else "loss -"


def _actors(report: Report) -> str:
    actors = "actor" if report.actors == 1 else "actors"
    environments = "environment" if report.environments == 1 else "environments"
    return f"{report.actors} {actors} with {report.environments} {environments}"


def _left(report: Report) -> str:
    if report.seconds_left is None:
        return "-"
    minutes, seconds = divmod(round(report.seconds_left), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
