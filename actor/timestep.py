"""What environments show: the one noun between environments, the loop and the client."""

from typing import Any, NamedTuple

import numpy as np


class TimeStep(NamedTuple):
    """N environments at one step, by Gymnasium's NEXT_STEP autoreset.

    The row with `terminated` or `truncated` carries the true last observation; the action it
    receives is ignored; the environment's next row is `first`, with reward 0.
    """

    observation: Any
    """The space's structure (Dict: mapping, Tuple: sequence) of arrays [N, *shape]."""
    reward: np.ndarray
    """float32 [N]: reward of the transition that led here."""
    terminated: np.ndarray
    """bool [N]: the episode ended here in the environment's own terms."""
    truncated: np.ndarray
    """bool [N]: the episode was cut here (time limit)."""
    first: np.ndarray
    """bool [N]: first observation of an episode."""


def restart(observation: Any, num_environments: int | None = None) -> TimeStep:
    """The first step of an episode, of one environment or of `num_environments`."""
    shape = () if num_environments is None else (num_environments,)
    no = np.zeros(shape, bool)
    return TimeStep(observation, np.zeros(shape, np.float32), no, no, ~no)


def transition(observation: Any, reward: Any, terminated: Any, truncated: Any) -> TimeStep:
    """A later step: what Gymnasium's `step` returned, of one environment or of many."""
    terminated = np.asarray(terminated, bool)
    return TimeStep(
        observation,
        np.asarray(reward, np.float32),
        terminated,
        np.asarray(truncated, bool),
        np.zeros(terminated.shape, bool),
    )
