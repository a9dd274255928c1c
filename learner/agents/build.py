"""The one place that knows every agent."""

from learner.agents.agent import Agent
from learner.agents.vtrace import VTraceAgent
from learner.config import AgentOptions
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
    agents = {"vtrace": VTraceAgent}
    return agents[options.agent](options, spec, seed=seed)
