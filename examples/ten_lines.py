"""Your own loop: everything that an actor must do, in ten lines.

    seedbed learner --total-steps 20000
    python examples/ten_lines.py

The two may be started in either order, and on different machines: give the learner's address as the
argument.
"""

import sys
from contextlib import suppress

import gymnasium

from actor import InferenceClient, restart, transition
from protos.errors import RunEnded

server = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7777"

# What stands below is in README.md, too.
env = gymnasium.make("CartPole-v1")
with (
    suppress(RunEnded),  # raised once the learner has trained for its --total-steps
    InferenceClient(server, env.observation_space, env.action_space) as client,
):
    while True:
        timestep = restart(env.reset()[0])
        while not (timestep.terminated or timestep.truncated):
            action = client.act(timestep)
            timestep = transition(*env.step(action)[:4])
        client.act(timestep)  # the last observation; the answer is not used
