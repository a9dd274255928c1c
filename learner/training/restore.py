"""Checkpoints back into agents, and into the replay."""

import logging

import numpy as np

from learner.agents.agent import Agent
from learner.experience.build import Experience
from learner.training.checkpoint import Checkpoint, Checkpoints, Expected, require_arrays
from protos.errors import CheckpointError

logger = logging.getLogger(__name__)


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


def load_replay(checkpoints: Checkpoints) -> Checkpoint | None:
    """The saved replay; None if there is none.

    Raises:
        CheckpointError: there is one, and it is damaged.
    """
    try:
        return checkpoints.load_latest()
    except CheckpointError as error:
        raise CheckpointError(
            f"the replay saved in {checkpoints.paths()[-1].parent} cannot be loaded: delete this "
            "folder to go on with the weights and an empty replay"
        ) from error


def restore_replay(experience: Experience, checkpoint: Checkpoint) -> None:
    """Load a saved replay. Before any thread of the experience is started.

    Raises:
        CheckpointError: it does not fit the unrolls of this run.
    """
    assert experience.replayed is not None
    unrolls = checkpoint.require("unrolls")
    specs = experience.replayed.expected(unrolls)
    require_arrays(checkpoint, {name: Expected(*spec) for name, spec in specs.items()})
    metadata = {name: checkpoint.require(name) for name in experience.replayed.METADATA}
    experience.restore(checkpoint.arrays, metadata)
    logger.info("replay of version %s: %s unrolls", checkpoint.version, unrolls)
