"""Your own loop over several environments: one message to the learner for all of them.

    seedbed learner --total-steps 20000
    python examples/several_environments.py

The learner's address may be given as the argument.
"""

import sys
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np

from actor import InferenceClient, TimeStep, restart, transition
from protos.errors import RunEnded

server = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7777"


# What stands below is in docs/custom-environments.md, too.
def advance(env: Any, row: TimeStep, action: Any) -> TimeStep:
    """The environment's next row: the first of an episode, after a last one."""
    if row.terminated or row.truncated:
        return restart(env.reset()[0])
    return transition(*env.step(action)[:4])


envs = [gymnasium.make("CartPole-v1") for _ in range(4)]
spaces = envs[0].observation_space, envs[0].action_space
with suppress(RunEnded), InferenceClient(server, *spaces, num_environments=len(envs)) as client:
    rows = [restart(env.reset()[0]) for env in envs]
    while True:
        actions = client.act(TimeStep(*map(np.stack, zip(*rows, strict=True))))
        rows = [advance(*each) for each in zip(envs, rows, actions, strict=True)]
