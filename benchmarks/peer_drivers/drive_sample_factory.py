"""Drives Sample Factory (APPO); run by its interpreter.

    python -m benchmarks.peer_drivers.drive_sample_factory SETTINGS

`extra`: splits (groups of environments that a worker alternates between), shared (one tower for policy
and value), flags (further options).
"""

import functools
import os
import sys
import tempfile
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.algo.utils.context import global_model_factory
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.actor_critic import create_actor_critic
from sample_factory.model.encoder import Encoder
from sample_factory.train import make_runner

from benchmarks.peer_drivers import records
from benchmarks.peer_drivers.making import make_world
from benchmarks.peer_drivers.say import Readings, say
from benchmarks.peer_drivers.settings import HIDDEN_SIZES, LSTM_SIZE, SHALLOW_DENSE, Settings
from benchmarks.peer_drivers.torch_network import parameters, shallow


class WorldAgents(gymnasium.Env):  # type: ignore[misc]  # Gymnasium is untyped here
    """A world as one environment of many agents, which is how Sample Factory takes a batch."""

    is_multiagent = True
    render_mode = None

    def __init__(self, settings: Settings, index: int) -> None:
        splits = settings.extra.get("splits", 1)
        self.num_agents = settings.envs_per_actor // splits
        seed = settings.seed * 1000 + index
        self._world = make_world(settings.workload, self.num_agents, "same", seed=seed)
        images = self._world.dtype == np.uint8
        low, high = (0, 255) if images else (-np.inf, np.inf)
        self.observation_space = Box(low, high, self._world.shape, self._world.dtype)
        self.action_space = Discrete(self._world.num_actions)
        self._infos: list[dict[str, Any]] = [{} for _ in range(self.num_agents)]

    def reset(self, **_: Any) -> Any:
        return self._world.reset(), self._infos

    def step(self, actions: np.ndarray) -> Any:
        step = self._world.step(np.asarray(actions))
        return step.observation, step.reward, step.terminated, step.truncated, self._infos


def make(
    settings: Settings, name: str, cfg: Any = None, env_config: Any = None, render_mode: Any = None
) -> WorldAgents:
    """Called wherever Sample Factory needs an environment."""
    return WorldAgents(settings, env_config.env_id if env_config is not None else 0)


class Shallow(Encoder):  # type: ignore[misc]  # its own interpreter alone has the package
    """The agreed convolutions; Sample Factory scales the pixels itself (--obs_scale)."""

    def __init__(self, cfg: Any, obs_space: Any) -> None:
        super().__init__(cfg)
        self._layers = shallow()

    def forward(self, observation: Any) -> torch.Tensor:
        features: torch.Tensor = self._layers(observation["obs"])
        return features

    def get_out_size(self) -> int:
        return SHALLOW_DENSE


class Watch(AlgoObserver):  # type: ignore[misc]  # its own interpreter alone has the package
    """Reads what the learner has reported of its steps."""

    def __init__(self, batch_steps: int) -> None:
        self._readings = Readings(records.folder())
        self._batch_steps = batch_steps

    def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
        trained = sum(runner.env_steps.values())
        lag = runner.policy_lag[0].get("version_diff_avg")
        updates = trained // self._batch_steps
        self._readings.add(trained, updates, None if lag is None else float(lag))


def arguments(settings: Settings, folder: str) -> list[str]:
    """The command line of Sample Factory's own training script."""
    splits = settings.extra.get("splits", 1)
    values: dict[str, Any] = {
        "algo": "APPO",
        "env": settings.workload,
        "experiment": "run",
        "train_dir": folder,
        "restart_behavior": "overwrite",
        "device": "cpu",
        "seed": settings.seed,
        "batched_sampling": True,
        "num_workers": settings.actors,
        "num_envs_per_worker": splits,
        "worker_num_splits": splits,
        "rollout": settings.unroll_length,
        "batch_size": settings.batch_steps,
        "num_epochs": 1,
        "learning_rate": settings.learning_rate,
        "adam_eps": settings.adam_epsilon,
        "gamma": settings.discount,
        "gae_lambda": settings.trace_lambda,
        "max_grad_norm": settings.gradient_clip,
        "exploration_loss_coeff": settings.entropy_cost,
        "value_loss_coeff": settings.value_cost,
        "with_vtrace": False,
        "use_rnn": settings.recurrent,
        "recurrence": settings.unroll_length if settings.recurrent else 1,
        "rnn_type": "lstm",
        "rnn_size": LSTM_SIZE,
        "normalize_input": False,
        "normalize_returns": False,
        "value_bootstrap": True,
        "actor_critic_share_weights": settings.shared,
        "nonlinearity": "relu" if settings.images else "tanh",
        "obs_scale": 255.0 if settings.images else 1.0,
        "summaries_use_frameskip": False,
        "save_every_sec": 10**6,
        **settings.extra.get("flags", {}),
    }
    sizes = [str(size) for size in HIDDEN_SIZES]
    return [f"--{name}={value}" for name, value in values.items()] + ["--encoder_mlp_layers", *sizes]


def main() -> None:
    settings = Settings.from_json(sys.argv[1])
    os.environ["OMP_NUM_THREADS"] = str(settings.threads)
    register_env(settings.workload, functools.partial(make, settings))
    if settings.images:
        global_model_factory().register_encoder_factory(Shallow)
    with tempfile.TemporaryDirectory() as folder:
        options = arguments(settings, folder)
        parser, _ = parse_sf_args(options)
        cfg, runner = make_runner(parse_full_cfg(parser, options))
        runner.register_observer(Watch(settings.batch_steps))
        if runner.init() != ExperimentStatus.SUCCESS:
            raise SystemExit("Sample Factory's runner does not start")
        info = runner.env_info
        spaces = gymnasium.spaces.Dict({"obs": WorldAgents(settings, 999).observation_space})
        model = create_actor_critic(cfg, spaces, info.action_space)
        say(parameters=parameters(model), transport="shared memory")
        runner.run()


if __name__ == "__main__":
    main()
