"""Options of an agent: its algorithm and its network, as a frozen dataclass.

What two of them forbid each other is refused here, at start, with the way out.
"""

from dataclasses import dataclass, fields
from typing import Literal

from learner.algorithm_options import ACTOR_CRITICS, AlgorithmOptions
from protos.errors import ConfigError
from protos.options import check_ranges, flag, option


@dataclass(frozen=True)
class AgentOptions(AlgorithmOptions):
    """The algorithm and its network."""

    torso: Literal["auto", "mlp", "shallow", "deep"] = option(
        "auto",
        "network below the heads: MLP, or IMPALA's shallow or deep convolutions; "
        "auto takes shallow if an observation is an image (rank 3 and uint8), else mlp",
    )
    hidden_sizes: tuple[int, ...] = option(
        (64, 64),
        "units of the MLP's layers, as [64, 64]; it takes what the convolutions do not",
        at_least=1,
        at_most=65_536,
    )
    value_hidden_sizes: tuple[int, ...] = option(
        (),
        "units of the value function's own MLP, if not those of --hidden-sizes",
        at_least=1,
        at_most=65_536,
        agents=ACTOR_CRITICS,
    )
    activation: Literal["tanh", "relu", "relu6"] = option("tanh", "between the layers of the MLP")
    policy_mean: Literal["linear", "tanh"] = option(
        "linear",
        "mean of a Box action: linear, or kept within the bounds by tanh",
        agents=ACTOR_CRITICS,
    )
    policy_std: Literal["free", "softplus"] = option(
        "free",
        "standard deviation of a Box action: free variables, or softplus of the network",
        agents=ACTOR_CRITICS,
    )
    lstm_size: int = option(
        0, "units of the LSTM above the torso; 0 for none", at_least=0, at_most=65_536
    )
    lstm_horizon: int = option(
        0,
        "steps over which the LSTM remembers at first, 3 or more; 0 for a few",
        at_least=0,
        at_most=1_000_000,
    )
    frame_stack: int = option(
        1, "images that the policy sees at once; an actor sends each one once", at_least=1, at_most=64
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        _check_agent(self)
        if self.agent == "ppo":
            _check_minibatches(self)
        if self.replays:
            _check_replay(self)
        if self.lstm_horizon and not self.lstm_size:
            raise ConfigError(
                f"--lstm-horizon {self.lstm_horizon} is of an LSTM, and there is none: leave it out, or "
                "choose an --lstm-size"
            )
        if self.lstm_horizon in (1, 2):
            raise ConfigError(
                f"--lstm-horizon {self.lstm_horizon} is too short for memories to differ: say 3 or "
                "more, or 0"
            )
        if self.agent == "sac":
            _check_sac(self)


def _check_agent(options: AgentOptions) -> None:
    """Refuse what was said of another algorithm: it would have no effect, and nobody would know."""
    for entry in fields(options):
        agents = entry.metadata.get("agents", (options.agent,))
        if options.agent not in agents and getattr(options, entry.name) != entry.default:
            raise ConfigError(
                f"{flag(entry.name)} is an option of {' and '.join(agents)}, and --agent is "
                f"{options.agent}: leave it out, or choose --agent {agents[0]}"
            )


def _check_replay(options: AgentOptions) -> None:
    """Refuse what a replay could never give."""
    length, trained = options.sample_length, options.trained_length
    if trained < 1:
        raise ConfigError(
            f"--burn-in {options.burn_in} leaves nothing to train on of --replay-sequence-unrolls "
            f"{options.replay_sequence_unrolls} times --unroll-length {options.unroll_length}: lower "
            "it, or raise one of these"
        )
    longest = trained if options.replays_sequences else options.unroll_length
    if options.n_step > longest:
        raise ConfigError(
            f"--n-step {options.n_step} is more than the {longest} transitions that follow each other "
            "in a sample: lower it, or raise --unroll-length"
        )
    if options.burn_in and not options.lstm_size:
        raise ConfigError(
            f"--burn-in {options.burn_in} warms an LSTM, and there is none: say --burn-in 0, or choose "
            "an --lstm-size"
        )
    if options.replay_capacity < options.batch_size * length:
        raise ConfigError(
            f"--replay-capacity {options.replay_capacity} is less than a batch, --batch-size "
            f"{options.batch_size} times {length} transitions: raise it to {options.batch_size * length}"
        )
    kept = options.replay_capacity // options.unroll_length * options.unroll_length
    if options.replay_min_size > kept:
        raise ConfigError(
            f"--replay-min-size {options.replay_min_size} is more than --replay-capacity "
            f"{options.replay_capacity} keeps in whole unrolls, which is {kept}, so that training would "
            "never start: lower it"
        )


def _check_minibatches(options: AgentOptions) -> None:
    """Refuse minibatches of different sizes."""
    unrolls, transitions = options.batch_size, options.batch_size * options.unroll_length
    memory = options.lstm_size > 0 or options.frame_stack > 1
    if memory and unrolls % options.minibatches:
        raise ConfigError(
            f"--minibatches {options.minibatches}: a policy with a memory needs a divisor of "
            f"--batch-size {unrolls}, since its unrolls stay whole"
        )
    if transitions % options.minibatches:
        raise ConfigError(
            f"--minibatches {options.minibatches}: expected a divisor of the batch's {transitions} "
            "transitions (--batch-size times --unroll-length)"
        )


def _check_sac(options: AgentOptions) -> None:
    """Refuse networks that SAC has not, and gradient steps of different sizes."""
    memory = "--lstm-size" if options.lstm_size else "--frame-stack" if options.frame_stack > 1 else ""
    if memory:
        raise ConfigError(
            f"{memory} gives the policy a memory, and --agent sac replays single transitions, with "
            "none: leave it out, or choose --agent r2d2"
        )
    if options.torso not in ("auto", "mlp"):
        raise ConfigError(
            f"--torso {options.torso} is one of convolutions, and --agent sac reads observations by an "
            "MLP: say --torso mlp, or choose another agent"
        )
    if options.batch_size % options.gradient_steps:
        raise ConfigError(
            f"--gradient-steps {options.gradient_steps}: expected a divisor of --batch-size "
            f"{options.batch_size}, of which each step gets its part"
        )
