"""The one place that knows every agent."""

from collections.abc import Callable

from learner.agent_options import AgentOptions
from learner.agents.a2c import A2CAgent
from learner.agents.agent import Agent
from learner.agents.ppo import PPOAgent
from learner.agents.r2d2 import R2D2Agent
from learner.agents.sac import SacAgent
from learner.agents.vtrace import VTraceAgent
from learner.group import ALONE, Learners
from protos.specs import EnvironmentSpec


def make_agent(
    options: AgentOptions, spec: EnvironmentSpec, *, seed: int, learners: Learners = ALONE
) -> Agent:
    """The agent that `options.agent` names, with fresh weights.

    Args:
        options: the algorithm and its network.
        spec: of the environments to act in.
        seed: decides the initial weights; the same seed gives the same.
        learners: those who train it together; only those that train on each unroll once can do that.

    Raises:
        ConfigError: the options do not fit the spec.
    """
    together: dict[str, Callable[..., Agent]] = {
        "vtrace": VTraceAgent,
        "ppo": PPOAgent,
        "a2c": A2CAgent,
    }
    alone: dict[str, Callable[..., Agent]] = {"r2d2": R2D2Agent, "sac": SacAgent}
    if options.agent in alone:
        return alone[options.agent](options, spec, seed=seed)
    return together[options.agent](options, spec, seed=seed, learners=learners)
