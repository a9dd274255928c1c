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
