"""What a run leaves at its end: the learning curve, the summary, and a last line in the log."""

import logging
from collections.abc import Sequence

from learner.telemetry.episodes import EpisodeTracker
from learner.telemetry.evaluations import Evaluation
from learner.telemetry.report import return_text
from learner.telemetry.run_directory import RunDirectory
from learner.telemetry.summary import summarize

logger = logging.getLogger(__name__)


def leave_results(
    directory: RunDirectory,
    episodes: EpisodeTracker,
    evaluations: Sequence[Evaluation],
    policy_version: int,
) -> None:
    """Write them into `directory`. What cannot be written is an error in the log: the run has ended."""
    directory.write_learning_curve(episodes.curve(), evaluations)
    summary = summarize(directory.options, episodes, evaluations, policy_version)
    try:
        directory.write_summary(summary)
    except OSError as error:
        logger.error("summary.json cannot be written: %s", error)
    mean = summary.mean_return_100
    logger.info(
        "%s environment steps in %.1f s (%s steps/s), %s episodes, mean return of the last %d: %s; "
        "see %s",
        f"{summary.env_steps:,}",
        summary.seconds,
        f"{summary.steps_per_second:,.0f}",
        f"{summary.episodes:,}",
        min(summary.episodes, 100),
        "none yet" if mean is None else return_text(mean),
        directory.path,
    )
