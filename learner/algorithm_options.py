"""Options of an algorithm, as a frozen dataclass; each says its unit and its bounds, and whose it is.

What two of them forbid each other is refused in `AgentOptions`, which adds the network.
"""

from dataclasses import dataclass
from typing import Literal

from protos.options import option

DEFAULT_AGENT = "vtrace"

ACTOR_CRITICS = ("vtrace", "ppo", "a2c")
"""Agents with a stochastic policy and a value function that learn from what the policy just did."""

REPLAY_AGENTS = ("r2d2", "sac")
"""Agents whose experience comes through a replay; that of others is trained on once."""


@dataclass(frozen=True)
class AlgorithmOptions:
    """The algorithm: what it learns from, and how."""

    agent: Literal["vtrace", "ppo", "a2c", "r2d2", "sac"] = option(DEFAULT_AGENT, "algorithm")
    unroll_length: int = option(
        16,
        "T, transitions in an unroll; consecutive unrolls share one step",
        at_least=1,
        at_most=100_000,
    )
    batch_size: int = option(8, "B, unrolls in a training batch", at_least=1, at_most=100_000)
    discount: float = option(0.99, "discount of a reward one step later", at_least=0, at_most=1)
    reward_clip: float = option(
        0.0, "rewards are clipped to [-x, x] for learning, never in reports; 0 clips nothing", at_least=0
    )
    reward_shift: float = option(
        0.0, "added to every reward, before --reward-scale; for learning, never in reports"
    )
    reward_scale: float = option(
        1.0, "every reward is multiplied by this, before --reward-clip", above=0
    )
    normalize_rewards: bool = option(
        False,
        "divide rewards by the running standard deviation of discounted returns, after --reward-clip",
        agents=ACTOR_CRITICS,
    )
    normalize_observations: bool = option(
        False,
        "give the network float arrays less their running mean, divided by their running standard "
        "deviation",
        agents=(*ACTOR_CRITICS, "sac"),
    )
    entropy_cost: float = option(0.01, "weight of the entropy bonus", at_least=0, agents=ACTOR_CRITICS)
    value_cost: float = option(0.5, "weight of the value loss", at_least=0, agents=ACTOR_CRITICS)
    rho_clip: float = option(
        1.0, "V-trace: clip of the importance weight, rho bar", above=0, agents=("vtrace",)
    )
    trace_clip: float = option(
        1.0, "V-trace: clip of the trace coefficient, c bar", above=0, agents=("vtrace",)
    )
    trace_lambda: float = option(
        0.95,
        "V-trace: further decay of the trace, lambda",
        at_least=0,
        at_most=1,
        agents=("vtrace",),
    )
    lock_step: bool = option(
        False,
        "acting waits until what it gathered is trained on, so that it goes on with the newest weights; "
        "always so for a2c",
        agents=ACTOR_CRITICS,
    )
    gae_lambda: float = option(
        0.95,
        "lambda of generalized advantage estimation: 0 trusts values, 1 rewards (n-step returns)",
        at_least=0,
        at_most=1,
        agents=("ppo", "a2c"),
    )
    normalize_advantages: bool = option(
        True, "advantages of a batch with mean 0 and variance 1", agents=("ppo", "a2c")
    )
    epochs: int = option(4, "PPO: passes over each batch", at_least=1, at_most=1000, agents=("ppo",))
    minibatches: int = option(
        4,
        "PPO: optimizer steps in a pass; they share the batch's transitions, or, where the policy has a "
        "memory, its unrolls",
        at_least=1,
        at_most=100_000,
        agents=("ppo",),
    )
    clip_ratio: float = option(
        0.2,
        "PPO: how far a probability's ratio may leave 1 and still be rewarded",
        above=0,
        agents=("ppo",),
    )
    clip_value: float = option(
        0.0,
        "PPO: how far a value may leave the recorded one; 0 clips nothing",
        at_least=0,
        agents=("ppo",),
    )
    max_kl: float = option(
        0.0,
        "PPO: no more steps on a batch once the policy's divergence from the one that acted passes "
        "this, in nats; 0 for no limit",
        at_least=0,
        agents=("ppo",),
    )
    n_step: int = option(
        1,
        "rewards in a target before it bootstraps; fewer at an episode's or a sequence's end",
        at_least=1,
        at_most=100_000,
        agents=REPLAY_AGENTS,
    )
    replay_capacity: int = option(
        100_000,
        "most transitions that the replay keeps; the oldest go first",
        at_least=1,
        at_most=10**12,
        agents=REPLAY_AGENTS,
    )
    replay_gigabytes: float = option(
        4.0, "most memory of the replay, in 10^9 bytes", above=0, agents=REPLAY_AGENTS
    )
    replay_min_size: int = option(
        1000, "transitions in the replay before training starts", at_least=1, agents=REPLAY_AGENTS
    )
    samples_per_insert: float = option(
        1.0,
        "transitions trained on for each one inserted; whichever side is ahead of that waits",
        above=0,
        agents=REPLAY_AGENTS,
    )
    priority_exponent: float = option(
        0.0,
        "alpha: samples are drawn in proportion to priority^alpha; 0 draws uniformly",
        at_least=0,
        at_most=1,
        agents=REPLAY_AGENTS,
    )
    importance_exponent: float = option(
        0.6,
        "beta: importance weights are (N P)^-beta, over their largest",
        at_least=0,
        at_most=1,
        agents=REPLAY_AGENTS,
    )
    importance_exponent_end: float = option(
        0.6,
        "beta at --total-steps, to which it changes linearly",
        at_least=0,
        at_most=1,
        agents=REPLAY_AGENTS,
    )
    replay_sequence_unrolls: int = option(
        1,
        "consecutive unrolls in a replayed sequence, burn-in included",
        at_least=1,
        at_most=1000,
        agents=("r2d2",),
    )
    burn_in: int = option(
        0,
        "transitions at a sequence's start that only warm the LSTM, without a loss",
        at_least=0,
        at_most=100_000,
        agents=("r2d2",),
    )
    target_period: int = option(
        100,
        "updates between two copies of the weights to the target network",
        at_least=1,
        at_most=10**9,
        agents=("r2d2",),
    )
    value_rescaling: bool = option(
        True, "learn h(Q) instead of Q, which brings large returns near each other", agents=("r2d2",)
    )
    priority_max_share: float = option(
        0.9,
        "eta: a sequence's priority is eta max |TD error| + (1 - eta) mean |TD error|",
        at_least=0,
        at_most=1,
        agents=("r2d2",),
    )
    epsilon: float = option(
        0.4,
        "exploration: environment i of N chooses at random with probability epsilon^(1 + i "
        "(x - 1) / (N - 1)), x being --epsilon-exponent",
        at_least=0,
        at_most=1,
        agents=("r2d2",),
    )
    epsilon_exponent: float = option(
        8.0, "exploration: exponent of the last environment", at_least=1, agents=("r2d2",)
    )
    epsilon_environments: int = option(
        0,
        "exploration: N; 0 for the local environments, or 16 with `seedbed learner`",
        at_least=0,
        at_most=1_000_000,
        agents=("r2d2",),
    )
    eval_epsilon: float = option(
        0.0, "probability of a random action in evaluation", at_least=0, at_most=1, agents=("r2d2",)
    )
    target_entropy: float | None = option(
        None,
        "SAC: entropy that the temperature keeps, in nats; if not given, -A for a Box of A elements, "
        "and 0.3 log A for A actions",
        agents=("sac",),
    )
    initial_temperature: float = option(
        1.0, "SAC: alpha at the beginning, the weight of the entropy", above=0, agents=("sac",)
    )
    temperature_learning_rate: float = option(
        3e-4,
        "SAC: step size for the temperature; 0 leaves it as it is",
        at_least=0,
        agents=("sac",),
    )
    critic_learning_rate: float = option(
        3e-4, "SAC: step size for the Q functions", above=0, agents=("sac",)
    )
    target_smoothing: float = option(
        0.005,
        "SAC: tau, how far the target Q functions move towards the trained ones at each step",
        above=0,
        at_most=1,
        agents=("sac",),
    )
    gradient_steps: int = option(
        1,
        "SAC: gradient steps by each batch, each by its own part of it; fewer calls for as many steps",
        at_least=1,
        at_most=10_000,
        agents=("sac",),
    )
    optimizer: Literal["adam", "rmsprop", "sgd"] = option("adam", "Keras optimizer")
    learning_rate: float = option(2e-3, "step size of the optimizer", above=0)
    value_learning_rate: float = option(
        0.0,
        "step size for the value function's own variables; 0 for --learning-rate",
        at_least=0,
        agents=ACTOR_CRITICS,
    )
    learning_rate_schedule: Literal["constant", "linear"] = option(
        "linear", "how the step size changes: not at all, or linearly to 0 at --total-steps"
    )
    optimizer_epsilon: float = option(1e-5, "added to the denominator of adam and rmsprop", above=0)
    clip_gradient_norm: float = option(
        0.5, "global norm to which gradients are clipped; 0 clips nothing", at_least=0
    )

    @property
    def replays(self) -> bool:
        """Whether experience comes through a replay."""
        return self.agent in REPLAY_AGENTS

    @property
    def replays_sequences(self) -> bool:
        """Whether samples of the replay are whole unrolls, not windows within them."""
        return self.agent == "r2d2"

    @property
    def sample_length(self) -> int:
        """Transitions in each column of a training batch."""
        if self.replays_sequences:
            return self.replay_sequence_unrolls * self.unroll_length
        return self.n_step if self.replays else self.unroll_length

    @property
    def trained_length(self) -> int:
        """Transitions in each column of a training batch that the loss is made of."""
        if self.replays_sequences:
            return self.sample_length - self.burn_in
        return 1 if self.replays else self.unroll_length

    @property
    def exploring_environments(self) -> int:
        """N, environments that the ladder of epsilons is for."""
        return self.epsilon_environments or 16
