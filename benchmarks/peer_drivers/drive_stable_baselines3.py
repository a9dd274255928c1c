"""Drives Stable-Baselines3 (A2C, PPO); run by its interpreter.

    python -m benchmarks.peer_drivers.drive_stable_baselines3 SETTINGS

It has no actor processes: its own would hold one environment each, so several share one here.
`extra`: algorithm, epochs, batch_size, use_rms_prop.
"""

import sys
from typing import Any

import torch
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from benchmarks.peer_drivers import records
from benchmarks.peer_drivers.say import Readings, say
from benchmarks.peer_drivers.sb3_vector import WorldVecEnv
from benchmarks.peer_drivers.settings import HIDDEN_SIZES, SHALLOW_DENSE, Settings
from benchmarks.peer_drivers.torch_network import parameters, shallow

FOREVER = 10**12
"""Steps: the benchmark ends the process."""


class Shallow(BaseFeaturesExtractor):  # type: ignore[misc]  # its own interpreter alone has the package
    """The agreed convolutions; Stable-Baselines3 scales the pixels itself."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space, SHALLOW_DENSE)
        self._layers = shallow()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self._layers(images)
        return features


class Watch(BaseCallback):  # type: ignore[misc]  # its own interpreter alone has the package
    """Everything collected so far has been trained on whenever a rollout begins."""

    def __init__(self) -> None:
        super().__init__()
        self._readings = Readings(records.folder())

    def _on_rollout_start(self) -> None:
        # A2C and PPO act with the newest policy.
        self._readings.add(self.num_timesteps, self.model._n_updates, 0.0)

    def _on_step(self) -> bool:
        return True


def build(settings: Settings) -> Any:
    """The algorithm on its environments."""
    extra, environments = settings.extra, WorldVecEnv(settings)
    network: dict[str, Any] = {"net_arch": list(HIDDEN_SIZES)}
    if settings.images:
        network = {"features_extractor_class": Shallow, "net_arch": []}
    network["optimizer_kwargs"] = {"eps": settings.adam_epsilon}
    common: dict[str, Any] = {
        "n_steps": settings.unroll_length,
        "learning_rate": settings.learning_rate,
        "gamma": settings.discount,
        "gae_lambda": settings.trace_lambda,
        "ent_coef": settings.entropy_cost,
        "vf_coef": settings.value_cost,
        "max_grad_norm": settings.gradient_clip,
        "seed": settings.seed,
        "device": "cpu",
        "policy_kwargs": network,
    }
    policy = "CnnPolicy" if settings.images else "MlpPolicy"
    if extra.get("algorithm", "A2C") == "PPO":
        batch = extra.get("batch_size", settings.batch_steps)
        return PPO(policy, environments, n_epochs=extra.get("epochs", 1), batch_size=batch, **common)
    if extra.get("use_rms_prop", False):
        del network["optimizer_kwargs"]
        return A2C(policy, environments, use_rms_prop=True, **common)
    return A2C(policy, environments, use_rms_prop=False, **common)


def main() -> None:
    settings = Settings.from_json(sys.argv[1])
    torch.set_num_threads(settings.threads)
    model = build(settings)
    say(parameters=parameters(model.policy), transport="pipes" if settings.actors else "none")
    model.learn(FOREVER, callback=Watch())


if __name__ == "__main__":
    main()
