"""Options of the learner's commands, as frozen dataclasses; each says its unit and its bounds.

`AgentOptions` (learner/agent_options.py) is what an algorithm and its network need; `LearnerOptions`
adds experience, serving and the run, `TrainOptions` adds the local actors. What two options forbid each
other is refused here, at start, with the way out.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from learner.agent_options import AgentOptions
from learner.algorithm_options import REPLAY_AGENTS
from protos.credentials import ConnectionOptions
from protos.errors import ConfigError
from protos.options import check_listen, check_ranges, check_server, check_video, option


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
        "settings by name, such as cartpole-ppo; atari (the usual ones of IMPALA); none; or auto, which "
        "takes atari for ALE/*, else none",
    )
    seed: int = option(
        1, "seed of weights, sampling and local environments", at_least=0, at_most=2**31 - 1
    )
    reproducible: bool = option(
        False,
        "the same seed gives the same weights, bit by bit, with the same versions of packages: one "
        "actor, whose acting waits for learning and the other way round, and TensorFlow's deterministic "
        "operations; slower",
    )
    logdir: str | None = option(None, "run directory; if not given, runs/ENV-AGENT-TIME")
    listen: str | None = option(
        None,
        "address to serve on, HOST:PORT or unix:PATH; if not given, 127.0.0.1:7777 for `learner` and a "
        "private unix socket for `train`",
    )
    metrics_listen: str | None = option(
        None,
        "address to show the run's state on by HTTP, HOST:PORT: a page for people at /, the same as "
        "JSON at /status.json, numbers for Prometheus at /metrics; whoever reaches it may look",
    )
    tls_cert: str | None = option(
        None, "certificate chain of the address on the network, PEM; read again when it changes"
    )
    tls_key: str | None = option(
        None, "private key of --tls-cert, PEM; others must not be able to read it"
    )
    tls_client_ca: str | None = option(
        None, "certificates of whom clients' certificates must come from, PEM (mutual TLS)"
    )
    token_file: str | None = option(
        None,
        "bearer tokens, one a line, of which clients must bring one; read again when it changes. One "
        "may also be in SEEDBED_TOKEN",
    )
    insecure: bool = option(
        False, "listen on an address that other machines reach without both TLS and tokens"
    )
    health_listen: str | None = option(
        None,
        "one more address, HOST:PORT, that has gRPC's health check and nothing else, in plain text: for "
        "probes that bring neither TLS nor a token, as those of Kubernetes",
    )
    total_steps: int = option(
        500_000, "environment steps after which the run ends", at_least=1, at_most=10**15
    )
    stop_return: float | None = option(
        None, "end the run when the mean return of the last 100 training episodes reaches this"
    )
    clip_observations: float = option(
        0.0,
        "clip the floats of observations to this, up and down, with 0 in place of NaN; 0 for none: what "
        "is not finite is refused then",
        at_least=0,
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
    inference_threads: int = option(
        1, "threads that call the policy, where TensorFlow computes it", at_least=1, at_most=64
    )
    policy_engine: Literal["auto", "numpy", "tensorflow"] = option(
        "auto",
        "what computes actions: numpy in the thread that receives observations, tensorflow in inference "
        "threads, or auto for numpy where the network is small and there is no accelerator",
    )
    lease_seconds: float = option(
        30.0,
        "how long a broken stream's environments stay leased, in seconds",
        at_least=0,
        at_most=604_800,
    )
    max_message_rate: int = option(
        10_000,
        "most messages a second that are read of one stream, so that one that floods holds back itself; "
        "0 for any number",
        at_least=0,
        at_most=10_000_000,
    )
    queue_capacity: int = option(
        0,
        "finished unrolls that wait for training before actors wait; 0 for one batch, or for 8 on their "
        "way into a replay",
        at_least=0,
        at_most=1_000_000,
    )
    eval_interval: int = option(
        0,
        "environment steps between two evaluations of the policy by environments of their own, which "
        "never train; the best one's checkpoint is kept; 0 for none",
        at_least=0,
    )
    eval_episodes: int = option(20, "episodes in each evaluation", at_least=1, at_most=1_000_000)
    eval_envs: int = option(
        0,
        "evaluation environments: how many `train` starts, or `learner` takes; 0 for one an episode, up "
        "to 10",
        at_least=0,
        at_most=65_536,
    )
    stop_eval_return: float | None = option(
        None, "end the run when the mean return of an evaluation reaches this"
    )
    log_interval_seconds: float = option(
        2.0, "seconds between two lines of metrics.jsonl", above=0, at_most=86_400
    )
    checkpoint_interval_seconds: float = option(
        60.0, "seconds between two checkpoints", above=0, at_most=604_800
    )
    keep_checkpoints: int = option(3, "newest checkpoints that are kept", at_least=1, at_most=1_000_000)
    watchdog_seconds: float = option(
        300.0,
        "seconds after which a policy call or an update counts as hung: the health check turns "
        "NOT_SERVING, and the log says where each thread is",
        above=0,
        at_most=604_800,
    )
    drain_seconds: float = option(
        60.0,
        "seconds that a run has to save and to end after the first signal or failure; then its process "
        "ends with status 1, and the log says where each thread is",
        above=0,
        at_most=86_400,
    )
    interrupted_status: int = option(
        0,
        "exit status where SIGTERM or SIGHUP ends a run before its end: another one than 0, such as "
        "143, where whoever starts it takes 0 for a run that is complete",
        at_least=0,
        at_most=255,
    )
    max_skipped_updates: int = option(
        10,
        "updates in a row that may be skipped because their loss or gradient is not finite; then the "
        "run ends, and leaves the batch in offending_batch.npz",
        at_least=1,
        at_most=1_000_000,
    )
    record: str | None = option(
        None,
        "file to record every message of every stream in, for `seedbed replay`; the former one becomes "
        "FILE.1, and so on",
    )
    record_max_bytes: int = option(
        1_000_000_000,
        "most bytes of the files of --record together; the newest messages are kept",
        at_least=1_000_000,
        at_most=10**15,
    )
    save_replay: bool = option(
        False,
        "save the replay with each checkpoint: as many bytes on disk, and in memory meanwhile",
        agents=REPLAY_AGENTS,
    )
    progress: Literal["auto", "live", "plain", "none"] = option(
        "auto", "display: live on a terminal, plain lines elsewhere"
    )
    tf_threads: int = option(
        0,
        "threads of one TensorFlow operation (intra-op); 0 for half of the cores",
        at_least=0,
        at_most=1024,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, address in (("--listen", self.listen), ("--health-listen", self.health_listen)):
            if address is not None:
                check_listen(name, address)
        if self.reproducible and self.inference_threads > 1:
            raise ConfigError(
                f"--reproducible with --inference-threads {self.inference_threads}: which of them comes "
                "first differs from run to run; leave one of the two out"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("--tls-cert and --tls-key go together: give both, or none")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ConfigError("--tls-client-ca needs TLS: give --tls-cert and --tls-key too")
        if self.stop_eval_return is not None and not self.eval_interval:
            raise ConfigError(
                "--stop-eval-return needs evaluations: give --eval-interval, or --stop-return for the "
                "training episodes"
            )
        if self.replays and self.replay_min_size >= self.total_steps:
            raise ConfigError(
                f"--replay-min-size {self.replay_min_size} is not less than --total-steps "
                f"{self.total_steps}, so that the run would end before training starts: lower it, or "
                "raise --total-steps"
            )
        if self.queue_capacity and self.queue_capacity < self.batch_size and not self.replays:
            raise ConfigError(
                f"--queue-capacity {self.queue_capacity} would never fill a batch of --batch-size "
                f"{self.batch_size} unrolls: raise it to at least {self.batch_size}"
            )

    @property
    def takes_turns(self) -> bool:
        """Whether acting waits for training."""
        return self.lock_step or self.reproducible or self.agent == "a2c"

    @property
    def evaluation_environments(self) -> int:
        """How many environments evaluate."""
        return self.eval_envs or min(self.eval_episodes, 10)


@dataclass(frozen=True)
class TrainOptions(LearnerOptions):
    """`seedbed train`: a learner and its local actors, on one machine."""

    num_actors: int = option(
        0,
        "actor processes; 0 for one a core that this process may use, up to 8, or one if --reproducible",
        at_least=0,
        at_most=4096,
    )
    envs_per_actor: int = option(16, "environments in each actor process", at_least=1, at_most=65_536)
    threads_per_actor: int = option(
        1,
        "threads of each actor process that step them, each its part with a stream of its own: for "
        "environments that wait, for a device or another process, rather than compute",
        at_least=1,
        at_most=1024,
    )
    actor_niceness: int = option(
        5,
        "how far actor processes stand back for the learner where cores are short (nice, and as batch "
        "processes where there are such): 0 for not at all, 19 for as far as they can",
        at_least=0,
        at_most=19,
    )

    def __post_init__(self) -> None:
        if self.num_actors == 0:
            # Here, so that whoever reads or stores the options sees one number.
            actors = 1 if self.reproducible else default_actors(available_cores())
            object.__setattr__(self, "num_actors", actors)
        super().__post_init__()
        if not self.env:
            raise ConfigError("--env is required: local actors need to know what to step")
        if self.reproducible and self.num_actors > 1:
            raise ConfigError(
                f"--reproducible with --num-actors {self.num_actors}: which of them comes first differs "
                "from run to run; say --num-actors 1, with more --envs-per-actor"
            )
        if self.reproducible and self.threads_per_actor > 1:
            raise ConfigError(
                f"--reproducible with --threads-per-actor {self.threads_per_actor}: which of them comes "
                "first differs from run to run; say --threads-per-actor 1"
            )
        if self.threads_per_actor > self.envs_per_actor:
            raise ConfigError(
                f"--threads-per-actor {self.threads_per_actor}: expected at most one an environment, "
                f"found --envs-per-actor {self.envs_per_actor}"
            )
        total = self.num_actors * self.envs_per_actor
        if self.max_environments and self.max_environments < total:
            raise ConfigError(
                f"--max-environments {self.max_environments} has no room for --num-actors "
                f"{self.num_actors} times --envs-per-actor {self.envs_per_actor}: raise it to {total}, "
                "or leave it out"
            )
        per_message = -(-self.envs_per_actor // self.threads_per_actor)
        if self.inference_batch_size and self.inference_batch_size < per_message:
            raise ConfigError(
                f"--inference-batch-size {self.inference_batch_size} is less than the {per_message} "
                "environments that come in one message (--envs-per-actor, by --threads-per-actor): "
                "raise it, or leave it out"
            )

    @property
    def exploring_environments(self) -> int:
        return self.epsilon_environments or self.num_actors * self.envs_per_actor


@dataclass(frozen=True)
class EvaluateOptions:
    """`seedbed evaluate`: greedy episodes of a checkpoint's policy, printed as JSON."""

    logdir: str = option(None, "run directory of `seedbed train` or `seedbed learner`")
    checkpoint: Literal["newest", "best"] = option(
        "newest", "which of the run's: the newest, or the one that did best in an evaluation"
    )
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
class ReplayOptions(ConnectionOptions):
    """`seedbed replay`: what `--record` has recorded, fed to a learner again."""

    file: str = option(
        None, "file that --record of a learner wrote; as the first word, it needs no name"
    )
    speed: Literal["real", "max"] = option(
        "max", "max sends as soon as the learner has answered; real waits as long as the recorded client"
    )
    answer_timeout_seconds: float = option(
        60.0, "how long to wait for each answer, in seconds", above=0, at_most=86_400
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.file is None:
            raise ConfigError("--file is required: the recording to replay")
        check_server(self.server)
        self.credentials()


@dataclass(frozen=True)
class ExportOptions:
    """`seedbed export`: a checkpoint's policy as a SavedModel."""

    logdir: str = option(None, "run directory of `seedbed train` or `seedbed learner`")
    checkpoint: Literal["newest", "best"] = option(
        "newest", "which of the run's: the newest, or the one that did best in an evaluation"
    )
    out: str = option(None, "folder to write the SavedModel to")

    def __post_init__(self) -> None:
        for name in ("logdir", "out"):
            if getattr(self, name) is None:
                raise ConfigError(f"--{name} is required")


MAX_DEFAULT_ACTORS = 8
"""More environments make more policy lag: who wants them says so."""


def default_actors(cores: int) -> int:
    """Actor processes where nobody says how many: one a core, whose load the learner shares."""
    return min(max(cores, 1), MAX_DEFAULT_ACTORS)


def available_cores() -> int:
    """Cores that this process may use; all of the machine's where the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


FREE_ON_RESUME = frozenset(
    {
        "logdir", "preset", "total_steps", "stop_return", "listen", "max_environments",
        "inference_batch_size", "inference_threads", "policy_engine", "lease_seconds", "queue_capacity",
        "log_interval_seconds", "checkpoint_interval_seconds", "keep_checkpoints", "progress",
        "tf_threads", "num_actors", "envs_per_actor", "threads_per_actor", "actor_niceness",
        "eval_interval", "eval_episodes", "eval_envs", "stop_eval_return", "save_replay",
        "max_skipped_updates", "watchdog_seconds", "max_message_rate", "tls_cert", "tls_key",
        "tls_client_ca", "token_file", "insecure", "record", "record_max_bytes", "drain_seconds",
        "interrupted_status", "health_listen", "metrics_listen",
    }
)  # fmt: skip
"""Options that a resumed run may change: they say how the run is run, not what is learned."""


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
