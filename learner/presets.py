"""Settings by name, and where each agent starts from.

They stand between the options' defaults and what the user says: default, then the agent's, then the
preset's, then file, environment and command line.
"""

from collections.abc import Mapping
from typing import Any

from learner.config import DEFAULT_AGENT
from protos.errors import ConfigError

Settings = Mapping[str, Any]

AGENT_DEFAULTS: Mapping[str, Settings] = {
    "vtrace": {},
}
"""What an agent wants otherwise than the options' own defaults, which are V-trace's."""

PRESETS: Mapping[str, Settings] = {
    "none": {},
    "atari": {
        "unroll_length": 20,
        "batch_size": 16,
        "reward_clip": 1.0,
        "frame_stack": 4,
        "torso": "shallow",
        "entropy_cost": 0.01,
        "learning_rate": 6e-4,
        "total_steps": 10_000_000,
    },
}
"""Settings by name. One that names an environment and an agent is a whole experiment."""


def starting_values(preset: str, env: str | None, agent: str | None) -> Settings:
    """What options are before the user says anything.

    Args:
        preset: a name, or "auto", which chooses by the environment's id.
        env: the environment, if the user names one.
        agent: the agent, if the user names one; it goes before the preset's.

    Raises:
        ConfigError: no such preset.
    """
    if preset == "auto":
        preset = "atari" if (env or "").startswith("ALE/") else "none"
    if preset not in PRESETS:
        raise ConfigError(f"--preset {preset}: expected auto or one of {', '.join(PRESETS)}")
    settings = PRESETS[preset]
    agent = agent or settings.get("agent", DEFAULT_AGENT)
    # An unknown agent is refused by the full parse, which says what there is.
    return {**AGENT_DEFAULTS.get(agent, {}), **settings}
