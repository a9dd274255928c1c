"""What one run is: handed to a driver as JSON, the same for every system."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

MARK = "@peers "
"""Begins the lines that are meant for the benchmark, among all that a system prints."""


@dataclass(frozen=True)
class Settings:
    """One run of one system on one workload."""

    workload: str
    """W1 to W6"""
    seed: int = 1
    actors: int = 2
    """processes that step environments; 0 steps them in the learner's own"""
    envs_per_actor: int = 8
    unroll_length: int = 32
    """steps of an environment in an update"""
    batch_steps: int = 512
    """steps in an update"""
    learning_rate: float = 5e-4
    discount: float = 0.99
    trace_lambda: float = 0.95
    """of V-trace or GAE, where the system has one"""
    gradient_clip: float = 0.5
    """global norm"""
    entropy_cost: float = 0.01
    value_cost: float = 0.5
    adam_epsilon: float = 1e-5
    threads: int = 1
    """of one operation, in each process"""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """what only this system knows"""

    @property
    def environments(self) -> int:
        return max(self.actors, 1) * self.envs_per_actor

    @property
    def images(self) -> bool:
        """Whether observations are 84x84 images, four of them stacked, for the convolutions."""
        return self.workload in ("W2", "W4")

    @property
    def shared(self) -> bool:
        """Whether policy and value share all below their heads."""
        return self.images or bool(self.extra.get("shared", False))

    @property
    def recurrent(self) -> bool:
        """Whether the policy has an LSTM of `LSTM_SIZE` units."""
        return self.workload == "W6"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "Settings":
        return Settings(**json.loads(text))


HIDDEN_SIZES = (64, 64)
"""tanh, a tower of its own for the policy and for the value, unless they are `shared`"""

LSTM_SIZE = 64
"""above each tower"""

SHALLOW = ((16, 8, 4), (32, 4, 2))
"""Filters, size and stride of the convolutions (Espeholt et al. 2018, figure 3 left), shared by policy
and value; a dense layer of `SHALLOW_DENSE` follows. All systems have this network, or take it."""

SHALLOW_DENSE = 256


def expected_parameters(settings: Settings) -> int:
    """Weights of the agreed network; an LSTM has one vector of biases."""
    if settings.images:
        actions, size = 6, 84
        total, channels = 0, 4
        for filters, kernel, stride in SHALLOW:
            total += (kernel * kernel * channels + 1) * filters
            channels, size = filters, (size - kernel) // stride + 1
        total += (channels * size * size + 1) * SHALLOW_DENSE
        return total + (SHALLOW_DENSE + 1) * (actions + 1)
    inputs, actions = (6, 4) if settings.recurrent else (4, 2)
    tower = 0
    for size in HIDDEN_SIZES:
        tower += (inputs + 1) * size
        inputs = size
    if settings.recurrent:
        tower += 4 * LSTM_SIZE * (inputs + LSTM_SIZE + 1)
        inputs = LSTM_SIZE
    return (1 if settings.shared else 2) * tower + (inputs + 1) * (actions + 1)


def second_biases(settings: Settings) -> int:
    """Further weights in torch, whose LSTM has two vectors of biases that are added."""
    towers = 1 if settings.shared else 2
    return towers * 4 * LSTM_SIZE if settings.recurrent else 0
