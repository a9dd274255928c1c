"""Checkpoints back into agents."""

import numpy as np

from learner.agents.agent import Agent
from learner.training.checkpoint import Checkpoint, Expected, require_arrays


def restore_agent(agent: Agent, checkpoint: Checkpoint) -> None:
    """Load a checkpoint into the agent's variables.

    Raises:
        CheckpointError: it does not fit them.
    """
    variables = agent.variables
    require_arrays(
        checkpoint,
        {
            name: Expected(tuple(v.shape), np.dtype(v.dtype.as_numpy_dtype))
            for name, v in variables.items()
        },
    )
    for name, variable in variables.items():
        variable.assign(checkpoint.arrays[name])
