"""Breakout of MinAtar (Young and Tian 2019): Atari's game on a grid of 10 x 10, 4 kinds of things.

    pip install minatar
    seedbed train --env examples/minatar_breakout.py:make_env --preset minatar-ppo

The package has Gymnasium environments but registers them for older versions of it alone.
"""

import gymnasium
from minatar.gym import BaseEnv


def make_env(render_mode: str | None = None) -> gymnasium.Env:
    """One game, with the three actions that matter in it."""
    return BaseEnv("breakout", render_mode=render_mode, use_minimal_action_set=True)
