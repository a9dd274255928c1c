"""SAC agents, and batches as their replay would give them, for the tests."""

from typing import Any

import numpy as np
import tensorflow as tf
from gymnasium import spaces

from learner.agent_options import AgentOptions
from learner.agents.build import make_agent
from learner.agents.sac import SacAgent
from learner.experience.trajectory import Batch
from protos.specs import EnvironmentSpec
from tests.learner.agents import samples

BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
DISCRETE = spaces.Discrete(3)
DESCENT = {
    "optimizer": "sgd", "learning_rate": 1.0, "critic_learning_rate": 1.0,
    "temperature_learning_rate": 1.0, "learning_rate_schedule": "constant", "clip_gradient_norm": 0.0,
}  # fmt: skip
"""Plain gradient descent at rate 1: the change of the weights is the gradient."""


def build(environment: EnvironmentSpec, seed: int = 1, **options: Any) -> SacAgent:
    chosen = {"agent": "sac", "hidden_sizes": (6,), "activation": "relu", **options}
    agent = make_agent(AgentOptions(**chosen), environment, seed=seed)
    assert isinstance(agent, SacAgent)
    return agent


def windows(agent: SacAgent, environment: EnvironmentSpec, length: int = 1, **options: Any) -> Batch:
    """Windows of `length` transitions, acted on by the policy, with importance weights."""
    batch = samples.rollout(agent.policy, environment, length=length, **{"batch": 12, **options})
    weights = np.random.default_rng(5).uniform(0.2, 1, batch.weight.shape).astype(np.float32)
    return batch._replace(weight=tf.constant(weights))


def arrays(agent: SacAgent) -> dict[str, np.ndarray]:
    return {name: np.asarray(v.numpy(), np.float64) for name, v in agent.variables.items()}
