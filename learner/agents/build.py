"""The one place that knows every agent."""

from collections.abc import Callable

from learner.agent_options import AgentOptions
from learner.agents.a2c import A2CAgent
from learner.agents.agent import Agent
from learner.agents.ppo import PPOAgent
from learner.agents.r2d2 import R2D2Agent
from learner.agents.sac import SacAgent
from learner.agents.vtrace import VTraceAgent
from protos.specs import EnvironmentSpec


def make_agent(options: AgentOptions, spec: EnvironmentSpec, *, seed: int) -> Agent:
    """The agent that `options.agent` names, with fresh weights.

    Args:
        options: the algorithm and its network.
        spec: of the environments to act in.
        seed: decides the initial weights; the same seed gives the same.

    Raises:
        ConfigError: the options do not fit the spec.
    """
    agents: dict[str, Callable[..., Agent]] = {
        "vtrace": VTraceAgent,
        "ppo": PPOAgent,
        "a2c": A2CAgent,
        "r2d2": R2D2Agent,
        "sac": SacAgent,
    }
    return agents[options.agent](options, spec, seed=seed)
