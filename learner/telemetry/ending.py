"""How a run ends, in words: for the last line of its log, and for whoever starts it again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from learner.config import LearnerOptions
from learner.telemetry.episodes import EpisodeTracker
from learner.telemetry.evaluations import Evaluation, Evaluations


def reached(
    options: LearnerOptions, episodes: EpisodeTracker, evaluations: Sequence[Evaluation]
) -> str | None:
    """The option that ends the run, with its value, as a command line says it; None before its end."""
    if goal := reached_return(options, episodes, evaluations):
        return goal
    if episodes.env_steps >= options.total_steps:
        return f"--total-steps {options.total_steps}"
    return None


def reached_return(
    options: LearnerOptions, episodes: EpisodeTracker, evaluations: Sequence[Evaluation]
) -> str | None:
    """The same of the options that end it for what it has learned."""
    if options.stop_return is not None and episodes.solved_env_steps is not None:
        return f"--stop-return {options.stop_return:g}"
    enough = options.stop_eval_return
    if enough is not None and any(each.mean_return >= enough for each in evaluations):
        return f"--stop-eval-return {enough:g}"
    return None


def stored_goal(
    options: LearnerOptions, episodes: Mapping[str, Any], evaluations: Sequence[Any]
) -> str | None:
    """The same of a run that a checkpoint holds, of the states that it has of both."""
    tracker, results = EpisodeTracker(1, stop_return=options.stop_return), Evaluations(1, 1)
    tracker.restore(episodes)
    results.restore(evaluations)
    return reached(options, tracker, results.results())


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What is known of a run's end."""

    env_steps: int
    """environment steps that were made"""
    total_steps: int
    """those that were wanted"""
    finished: bool
    """whether the run is over, and no process goes on with it"""
    goal: str | None
    """what this process saw reached, see `reached`"""
    signal: str
    """name of the one that came; empty if none did"""
    failed: bool
    """whether a part failed"""
    saved: bool
    """whether the last state is in a checkpoint"""

    def words(self, again: str) -> str:
        """The last line of the log; `again` says how to go on after a signal."""
        state = "saved" if self.saved else "not saved"
        if self.finished and not self.failed:
            goal = f": {self.goal} is reached" if self.goal else ""
            return f"finished{goal}; {state}"
        place = f"at step {self.env_steps:,} of {self.total_steps:,}; {state}"
        if self.failed:
            return f"failed {place}"
        return f"ended by {self.signal} {place}; {again}" if self.signal else f"ended {place}"
