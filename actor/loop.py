"""The actor's story."""

import logging
from collections.abc import Callable
from typing import Protocol

import numpy as np

from actor.environments import VectorEnvironment
from actor.timestep import TimeStep
from actor.waiting import Interrupted
from protos.errors import EnvironmentFailure, RunEnded

logger = logging.getLogger(__name__)


class Client(Protocol):
    """What the loop needs of `actor.client.InferenceClient`."""

    def act(self, timestep: TimeStep) -> np.ndarray: ...

    def close(self, error: str = "") -> None: ...


class Recorder(Protocol):
    """What the loop needs of `actor.video.VideoRecorder`."""

    def record(self, timestep: TimeStep, render: Callable[[], np.ndarray | None]) -> None: ...


def run_actor(
    environment: VectorEnvironment,
    client: Client,
    *,
    stopped: Callable[[], bool],
    recorder: Recorder | None = None,
) -> None:
    """Step the environments with the policy's actions, until the run ends or `stopped()`.

    Raises:
        EnvironmentFailure: the environment failed; the learner has been told.
        RequestError: the learner refused, or is gone for longer than the client waits.
    """
    try:
        timestep = environment.reset()
        while not stopped():
            if recorder is not None:
                recorder.record(timestep, environment.render)
            actions = client.act(timestep)
            timestep = environment.step(actions)
    except EnvironmentFailure as failure:
        client.close(error=str(failure))
        raise
    except RunEnded as end:
        logger.info("the run has ended: %s", end)
    except Interrupted:
        logger.debug("interrupted while waiting for actions")
