"""Drives Ray RLlib (IMPALA, APPO, on its new API stack); run by its interpreter.

    python -m benchmarks.peer_drivers.drive_rllib SETTINGS

`extra`: algorithm, passes and buffers (APPO's circular buffer), shared (one tower for policy and value).
"""

import logging
import os
import sys
from typing import Any

import gymnasium
import numpy as np
import ray
import torch
from ray import tune
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from benchmarks.peer_drivers import records
from benchmarks.peer_drivers.say import Readings, say
from benchmarks.peer_drivers.settings import HIDDEN_SIZES, LSTM_SIZE, SHALLOW, SHALLOW_DENSE, Settings
from benchmarks.peer_drivers.torch_network import parameters
from benchmarks.peer_drivers.vector_env import WorldVectorEnv

OBJECT_STORE_BYTES = 2_000_000_000


def as_floats(images: np.ndarray) -> np.ndarray:
    """float32 [N, 84, 84, frames] in 0..1: RLlib's convolutions take no bytes."""
    return np.moveaxis(images, 1, -1).astype(np.float32) / 255.0


def make(context: Any) -> WorldVectorEnv:
    """Called by each of RLlib's actors."""
    settings = Settings.from_json(context["settings"])
    space = gymnasium.spaces.Box(0.0, 1.0, (84, 84, 4), np.float32)
    # RLlib does not tell a vectorised environment which actor it is in.
    seed = settings.seed * 1000 + os.getpid()
    return WorldVectorEnv(settings.workload, context["num_envs"], seed, layout=as_floats, space=space)


def network(settings: Settings) -> DefaultModelConfig:
    """The agreed network in RLlib's terms."""
    if settings.images:
        left = 84
        for _, kernel, stride in SHALLOW:
            left = (left - kernel) // stride + 1
        # RLlib would give each head a dense layer of its own; a convolution of all that is left is the
        # same as the one that is shared.
        layers = [*SHALLOW, (SHALLOW_DENSE, left, 1)]
        return DefaultModelConfig(
            conv_filters=[[*layer, "valid"] for layer in layers],
            conv_activation="relu",
            head_fcnet_hiddens=[],
            vf_share_layers=True,
        )
    return DefaultModelConfig(
        fcnet_hiddens=list(HIDDEN_SIZES),
        fcnet_activation="tanh",
        vf_share_layers=settings.shared,
        use_lstm=settings.recurrent,
        lstm_cell_size=LSTM_SIZE,
        max_seq_len=settings.unroll_length,
    )


def configure(settings: Settings) -> Any:
    """The algorithm's configuration."""
    extra = settings.extra
    training: dict[str, Any] = {
        "train_batch_size_per_learner": settings.batch_steps,
        "lr": settings.learning_rate,
        "gamma": settings.discount,
        "grad_clip": settings.gradient_clip,
        "entropy_coeff": settings.entropy_cost,
        "vf_loss_coeff": settings.value_cost,
    }
    config: Any = IMPALAConfig()
    if extra.get("algorithm", "IMPALA") == "APPO":
        config = APPOConfig()
        training["circular_buffer_iterations_per_batch"] = extra.get("passes", 1)
        training["circular_buffer_num_batches"] = extra.get("buffers", 2)
    return (
        config.environment("world", env_config={"settings": settings.to_json()})
        .env_runners(
            num_env_runners=settings.actors,
            num_envs_per_env_runner=settings.envs_per_actor,
            rollout_fragment_length=settings.unroll_length,
            gym_env_vectorize_mode=gymnasium.VectorizeMode.VECTOR_ENTRY_POINT,
        )
        .learners(num_learners=0)
        .training(**training)
        .rl_module(model_config=network(settings))
        .reporting(min_time_s_per_iteration=1)
        .debugging(seed=settings.seed)
    )


def read(result: dict[str, Any], settings: Settings, readings: Readings) -> None:
    """One of RLlib's reports as a reading."""
    learners = result.get("learners", {})
    trained = learners.get("__all_modules__", {}).get("num_env_steps_trained_lifetime", 0)
    passes = settings.extra.get("passes", 1) if settings.extra.get("algorithm") == "APPO" else 1
    lag = learners.get("default_policy", {}).get("diff_num_grad_updates_vs_sampler_policy")
    # Each step counts once, however often the circular buffer hands it out.
    once = float(trained) / passes
    updates = int(trained // settings.batch_steps)
    readings.add(once, updates, None if lag is None else float(lag))


def main() -> None:
    settings = Settings.from_json(sys.argv[1])
    torch.set_num_threads(settings.threads)
    ray.init(
        # More than there are, so that waiting actors do not keep others from starting.
        num_cpus=settings.actors + 2,
        include_dashboard=False,
        logging_level=logging.ERROR,
        # Else an actor's failure would have no words.
        log_to_driver=True,
        object_store_memory=OBJECT_STORE_BYTES,
    )
    tune.register_env("world", make)
    algorithm = configure(settings).build_algo()
    module = algorithm.learner_group._learner.module["default_policy"]
    say(parameters=parameters(module), transport="Ray's object store")
    readings = Readings(records.folder())
    while True:
        read(algorithm.train(), settings, readings)


if __name__ == "__main__":
    main()
