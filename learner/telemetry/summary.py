"""summary.json: what came out of a run."""

from collections.abc import Sequence
from dataclasses import dataclass

from learner.config import LearnerOptions
from learner.telemetry.episodes import EpisodeTracker
from learner.telemetry.evaluations import Evaluation


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The run's result, over all resumptions."""

    env: str | None
    agent: str
    seed: int
    env_steps: int
    """executed environment steps"""
    seconds: float
    """seconds of training"""
    steps_per_second: float
    """the mean over the whole run"""
    episodes: int
    """finished training episodes"""
    mean_return_100: float | None
    """mean return of the last 100 of them, or of as many as there are; None if there are none"""
    stop_return: float | None
    """the threshold, if one was given"""
    solved_env_steps: int | None
    """steps when the mean return of 100 episodes first reached the threshold; None if it has not"""
    solved_seconds: float | None
    """seconds of training at that moment"""
    last_evaluation: float | None
    """mean return of the last evaluation; None if there was none"""
    best_evaluation: float | None
    """mean return of the best one, whose checkpoint is kept"""
    policy_version: int
    """batches trained on"""


def summarize(
    options: LearnerOptions,
    episodes: EpisodeTracker,
    evaluations: Sequence[Evaluation],
    policy_version: int,
) -> Summary:
    """The summary of a run as it stands."""
    seconds, steps = episodes.seconds(), episodes.env_steps
    return Summary(
        env=options.env,
        agent=options.agent,
        seed=options.seed,
        env_steps=steps,
        seconds=seconds,
        steps_per_second=steps / seconds if seconds > 0 else 0.0,
        episodes=episodes.episodes,
        mean_return_100=episodes.mean_return(),
        stop_return=options.stop_return,
        solved_env_steps=episodes.solved_env_steps,
        solved_seconds=episodes.solved_seconds,
        last_evaluation=evaluations[-1].mean_return if evaluations else None,
        best_evaluation=max((each.mean_return for each in evaluations), default=None),
        policy_version=policy_version,
    )
