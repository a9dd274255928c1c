"""Settings by name, and where each agent starts from.

They stand between the options' defaults and what the user says: default, then the agent's, then the
preset's, then file, environment and command line.
"""

from collections.abc import Mapping
from typing import Any

from learner.algorithm_options import DEFAULT_AGENT
from protos.errors import ConfigError

Settings = Mapping[str, Any]

AGENT_DEFAULTS: Mapping[str, Settings] = {
    "vtrace": {},
    "sac": {
        "batch_size": 256,
        "samples_per_insert": 256.0,
        "replay_capacity": 1_000_000,
        "replay_min_size": 5_000,
        # Unrolls that wait to be inserted are what acting is ahead by.
        "queue_capacity": 8,
        "hidden_sizes": (256, 256),
        "activation": "relu",
        "learning_rate": 3e-4,
        "learning_rate_schedule": "constant",
        "optimizer_epsilon": 1e-8,
        "clip_gradient_norm": 0.0,
    },
    "r2d2": {
        "unroll_length": 20,
        "replay_sequence_unrolls": 3,
        "burn_in": 20,
        "batch_size": 32,
        "n_step": 5,
        "lstm_size": 64,
        "activation": "relu",
        "samples_per_insert": 16.0,
        "priority_exponent": 0.9,
        "learning_rate": 1e-3,
        "clip_gradient_norm": 10.0,
    },
    "ppo": {
        "unroll_length": 64,
        "batch_size": 32,
        "minibatches": 8,
        "entropy_cost": 0.0,
        "learning_rate": 1e-3,
    },
    "a2c": {
        "num_actors": 1,
        "unroll_length": 8,
        "batch_size": 16,
        "gae_lambda": 1.0,
        "normalize_advantages": False,
    },
}
"""What an agent wants otherwise than the options' own defaults, which are V-trace's."""

ATARI: Settings = {
    "unroll_length": 20,
    "batch_size": 8,
    "reward_clip": 1.0,
    "frame_stack": 4,
    "torso": "shallow",
    # IMPALA's 0.01 is for losses that are sums. Pong's advantages are about 0.1, and with 0.01 their
    # gradient is lost in the bonus's: no progress within a million steps.
    "entropy_cost": 0.002,
    "learning_rate": 4e-4,
    "total_steps": 10_000_000,
}

PRESETS: Mapping[str, Settings] = {
    "none": {},
    "atari": ATARI,
    "pong-vtrace": {
        **ATARI,
        "env": "ALE/Pong-v5",
        "agent": "vtrace",
        # Two processes a core: while one waits for its actions, another emulates.
        "num_actors": 4,
        "envs_per_actor": 16,
        "learning_rate": 6e-4,
        "stop_return": 18.0,
    },
    "cartpole-vtrace": {
        "agent": "vtrace",
        "env": "CartPole-v1",
        "stop_return": 475.0,
        "total_steps": 500_000,
    },
    "acrobot-vtrace": {
        "agent": "vtrace",
        "env": "Acrobot-v1",
        "total_steps": 400_000,
    },
    "memory-vtrace": {
        "agent": "vtrace",
        "env": "examples/memory_task.py:make_env",
        # Longer than an episode: the gradient has to reach from the answer back to the cue.
        "unroll_length": 60,
        "hidden_sizes": (32,),
        "lstm_size": 64,
        "lstm_horizon": 20,
        "stop_return": 0.97,
        "total_steps": 800_000,
    },
    "cartpole-ppo": {
        "agent": "ppo",
        "env": "CartPole-v1",
        "unroll_length": 32,
        "epochs": 8,
        "minibatches": 4,
        "discount": 0.98,
        "learning_rate": 2e-3,
        "lock_step": True,
        "total_steps": 100_000,
    },
    "cartpole-a2c": {
        "agent": "a2c",
        "env": "CartPole-v1",
        "envs_per_actor": 8,
        "batch_size": 8,
        "unroll_length": 16,
        "gae_lambda": 0.95,
        "stop_return": 475.0,
        "total_steps": 250_000,
    },
    "acrobot-ppo": {
        "agent": "ppo",
        "env": "Acrobot-v1",
        "num_actors": 1,
        "batch_size": 16,
        "epochs": 8,
        "minibatches": 4,
        "learning_rate": 2e-3,
        "normalize_observations": True,
        "normalize_rewards": True,
        "lock_step": True,
        "total_steps": 150_000,
    },
    "pendulum-ppo": {
        "agent": "ppo",
        "env": "Pendulum-v1",
        "num_actors": 1,
        "batch_size": 16,
        "epochs": 10,
        "minibatches": 16,
        "discount": 0.9,
        "learning_rate": 1e-3,
        "normalize_rewards": True,
        "lock_step": True,
        "total_steps": 250_000,
    },
    "pendulum-a2c": {
        "agent": "a2c",
        "env": "Pendulum-v1",
        "envs_per_actor": 8,
        # Each unroll is an update of its own, as each of A3C's workers makes its own.
        "batch_size": 1,
        "unroll_length": 10,
        "discount": 0.9,
        "reward_shift": 8.0,
        "reward_scale": 0.125,
        "hidden_sizes": (200,),
        "value_hidden_sizes": (100,),
        "activation": "relu6",
        "policy_mean": "tanh",
        "policy_std": "softplus",
        "optimizer": "rmsprop",
        "learning_rate": 1e-4,
        "value_learning_rate": 1e-3,
        "learning_rate_schedule": "constant",
        "total_steps": 300_000,
    },
    "lunarlander-ppo": {
        "agent": "ppo",
        "env": "LunarLander-v3",
        "minibatches": 8,
        "discount": 0.995,
        "gae_lambda": 0.98,
        "entropy_cost": 0.01,
        "normalize_observations": True,
        "normalize_rewards": True,
        "lock_step": True,
        "total_steps": 600_000,
    },
    "minatar-ppo": {
        "agent": "ppo",
        "envs_per_actor": 32,
        "unroll_length": 32,
        "batch_size": 64,
        "minibatches": 8,
        "hidden_sizes": (128, 128),
        "activation": "relu",
        "entropy_cost": 0.01,
        "lock_step": True,
        "total_steps": 1_500_000,
    },
    "cartpole-r2d2": {
        "agent": "r2d2",
        "env": "CartPole-v1",
        "num_actors": 1,
        "envs_per_actor": 8,
        "unroll_length": 16,
        "replay_sequence_unrolls": 1,
        "burn_in": 0,
        "lstm_size": 0,
        "n_step": 10,
        "target_period": 50,
        "learning_rate": 2e-3,
        # Its exploring episodes are short to the end; the greedy ones say what it has learned, and come
        # and go on the way there.
        "eval_interval": 15_000,
        "eval_episodes": 100,
        "stop_eval_return": 500.0,
        "total_steps": 300_000,
    },
    "memory-r2d2": {
        "agent": "r2d2",
        "env": "examples/memory_task.py:make_env",
        "num_actors": 1,
        "lstm_horizon": 40,
        "hidden_sizes": (32,),
        "replay_capacity": 50_000,
        "learning_rate": 2e-3,
        "total_steps": 100_000,
    },
    "pendulum-sac": {
        "env": "Pendulum-v1",
        "agent": "sac",
        "num_actors": 1,
        "envs_per_actor": 4,
        "queue_capacity": 4,
        "unroll_length": 8,
        "replay_min_size": 1_000,
        "hidden_sizes": (64, 64),
        "learning_rate": 1e-3,
        "critic_learning_rate": 1e-3,
        "temperature_learning_rate": 1e-3,
        "total_steps": 40_000,
    },
    "halfcheetah-sac": {
        "env": "HalfCheetah-v5",
        "agent": "sac",
        "num_actors": 1,
        "envs_per_actor": 4,
        "queue_capacity": 4,
        "unroll_length": 16,
        "total_steps": 300_000,
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


def known_frame_skip(env: str | None) -> int | None:
    """Frames of an environment step; None where only the environment knows."""
    return 4 if (env or "").startswith("ALE/") else None
