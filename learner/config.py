"""Options of the learner's commands, as frozen dataclasses; each says its unit and its bounds.

`AgentOptions` is what an algorithm and its network need, `LearnerOptions` adds experience, serving
and the run, `TrainOptions` adds the local actors. What two options forbid each other is refused
here, at start, with the way out.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from protos.errors import ConfigError
from protos.options import check_ranges, check_video, flag, option

DEFAULT_AGENT = "vtrace"


@dataclass(frozen=True)
class AgentOptions:
    """The algorithm and its network."""

    agent: Literal["vtrace"] = option(DEFAULT_AGENT, "algorithm")
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
    entropy_cost: float = option(0.01, "weight of the entropy bonus", at_least=0)
    value_cost: float = option(0.5, "weight of the value loss", at_least=0)
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
    optimizer: Literal["adam", "rmsprop", "sgd"] = option("adam", "Keras optimizer")
    learning_rate: float = option(2e-3, "step size of the optimizer", above=0)
    learning_rate_schedule: Literal["constant", "linear"] = option(
        "linear", "how the step size changes: not at all, or linearly to 0 at --total-steps"
    )
    optimizer_epsilon: float = option(1e-5, "added to the denominator of adam and rmsprop", above=0)
    clip_gradient_norm: float = option(
        0.5, "global norm to which gradients are clipped; 0 clips nothing", at_least=0
    )
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
    lstm_size: int = option(
        0, "units of the LSTM above the torso; 0 for none", at_least=0, at_most=65_536
    )
    frame_stack: int = option(
        1, "images that the policy sees at once; an actor sends each one once", at_least=1, at_most=64
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        _check_agent(self)


@dataclass(frozen=True)
class LearnerOptions(AgentOptions):
    """`seedbed learner`: the server alone; actors come and go."""

    env: str | None = option(
        None,
        "environment: a Gymnasium id, ALE/Name, gym:ID for legacy gym, or module:callable; "
        "if not given, the first actor's specs decide",
    )
    preset: str = option(
        "auto",
        "settings by name: none, atari (the usual ones of IMPALA), or auto, which takes atari for "
        "ALE/*, else none",
    )
    seed: int = option(
        1, "seed of weights, sampling and local environments", at_least=0, at_most=2**31 - 1
    )
    logdir: str | None = option(None, "run directory; if not given, runs/ENV-AGENT-TIME")
    listen: str | None = option(
        None,
        "address to serve on, HOST:PORT or unix:PATH; if not given, 127.0.0.1:7777 for `learner` and a "
        "private unix socket for `train`",
    )
    total_steps: int = option(
        500_000, "environment steps after which the run ends", at_least=1, at_most=10**15
    )
    stop_return: float | None = option(
        None, "end the run when the mean return of the last 100 training episodes reaches this"
    )
    max_environments: int = option(
        0,
        "environments served at once; 0 for 1024, or four times the local ones",
        at_least=0,
        at_most=1_000_000,
    )
    inference_batch_size: int = option(
        0,
        "most environments in one policy call, and in one message; 0 for 256, or all local ones",
        at_least=0,
        at_most=65_536,
    )
    inference_threads: int = option(1, "threads that call the policy", at_least=1, at_most=64)
    lease_seconds: float = option(
        30.0,
        "how long a broken stream's environments stay leased, in seconds",
        at_least=0,
        at_most=604_800,
    )
    queue_capacity: int = option(
        0,
        "finished unrolls that wait for training before actors wait; 0 for one batch",
        at_least=0,
        at_most=1_000_000,
    )
    log_interval_seconds: float = option(
        2.0, "seconds between two lines of metrics.jsonl", above=0, at_most=86_400
    )
    checkpoint_interval_seconds: float = option(
        60.0, "seconds between two checkpoints", above=0, at_most=604_800
    )
    keep_checkpoints: int = option(3, "newest checkpoints that are kept", at_least=1, at_most=1_000_000)
    progress: Literal["auto", "live", "plain", "none"] = option(
        "auto", "display: live on a terminal, plain lines elsewhere"
    )
    tf_threads: int = option(
        0, "threads of one TensorFlow operation (intra-op); 0 for one a core", at_least=0, at_most=1024
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.queue_capacity and self.queue_capacity < self.batch_size:
            raise ConfigError(
                f"--queue-capacity {self.queue_capacity} would never fill a batch of --batch-size "
                f"{self.batch_size} unrolls: raise it to at least {self.batch_size}"
            )


@dataclass(frozen=True)
class TrainOptions(LearnerOptions):
    """`seedbed train`: a learner and its local actors, on one machine."""

    num_actors: int = option(2, "actor processes", at_least=1, at_most=4096)
    envs_per_actor: int = option(16, "environments in each actor process", at_least=1, at_most=65_536)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.env:
            raise ConfigError("--env is required: local actors need to know what to step")
        total = self.num_actors * self.envs_per_actor
        if self.max_environments and self.max_environments < total:
            raise ConfigError(
                f"--max-environments {self.max_environments} has no room for --num-actors "
                f"{self.num_actors} times --envs-per-actor {self.envs_per_actor}: raise it to {total}, "
                "or leave it out"
            )
        if self.inference_batch_size and self.inference_batch_size < self.envs_per_actor:
            raise ConfigError(
                f"--inference-batch-size {self.inference_batch_size} is less than --envs-per-actor "
                f"{self.envs_per_actor}, which come in one message: raise it, or leave it out"
            )


@dataclass(frozen=True)
class EvaluateOptions:
    """`seedbed evaluate`: greedy episodes of a checkpoint's policy, printed as JSON."""

    logdir: str = option(None, "run directory of `seedbed train` or `seedbed learner`")
    episodes: int = option(20, "episodes to play", at_least=1, at_most=1_000_000)
    num_envs: int = option(
        0, "environments at once; 0 for one an episode, up to 16", at_least=0, at_most=65_536
    )
    env: str | None = option(None, "another environment with the same specs as the run's")
    seed: int = option(1000, "seed of the environments", at_least=0, at_most=2**31 - 1)
    video: str | None = option(None, "record the first environment to this file: .mp4 or .gif")

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.logdir is None:
            raise ConfigError("--logdir is required: the run whose policy to evaluate")
        check_video(self.video)


@dataclass(frozen=True)
class ExportOptions:
    """`seedbed export`: a checkpoint's policy as a SavedModel."""

    logdir: str = option(None, "run directory of `seedbed train` or `seedbed learner`")
    out: str = option(None, "folder to write the SavedModel to")

    def __post_init__(self) -> None:
        for name in ("logdir", "out"):
            if getattr(self, name) is None:
                raise ConfigError(f"--{name} is required")


FREE_ON_RESUME = frozenset(
    {
        "logdir", "preset", "total_steps", "stop_return", "listen", "max_environments",
        "inference_batch_size", "inference_threads", "lease_seconds", "queue_capacity",
        "log_interval_seconds", "checkpoint_interval_seconds", "keep_checkpoints", "progress",
        "tf_threads", "num_actors", "envs_per_actor",
    }
)  # fmt: skip
"""Options that a resumed run may change: they say how the run is run, not what is learned."""


def _check_agent(options: AgentOptions) -> None:
    """Refuse what was said of another algorithm: it would have no effect, and nobody would know."""
    for entry in fields(AgentOptions):
        agents = entry.metadata.get("agents", (options.agent,))
        if options.agent not in agents and getattr(options, entry.name) != entry.default:
            raise ConfigError(
                f"{flag(entry.name)} is an option of {' and '.join(agents)}, and --agent is "
                f"{options.agent}: leave it out, or choose --agent {agents[0]}"
            )


def resume_differences(old: Mapping[str, Any], new: LearnerOptions) -> list[str]:
    """What differs between a run's stored options and those it is to go on with, as readable text."""
    current = asdict(new)
    return [
        f"{name} was {_plain(old.get(name))} and is now {_plain(current[name])}"
        for name in current
        if name not in FREE_ON_RESUME and _plain(old.get(name)) != _plain(current[name])
    ]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
