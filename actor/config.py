"""Options of `seedbed-actor`."""

from dataclasses import dataclass
from typing import Literal

from protos.credentials import ConnectionOptions
from protos.errors import ConfigError
from protos.options import check_ranges, check_server, check_video, option


@dataclass(frozen=True)
class ActorOptions(ConnectionOptions):
    """`seedbed-actor`: environments that ask a learner for their actions."""

    env: str | None = option(
        None,
        "environment: a Gymnasium id, ALE/Name, gym:ID for legacy gym, or yours as module:callable "
        "or path/file.py:callable",
    )
    num_envs: int = option(16, "environments in this process", at_least=1, at_most=65_536)
    num_threads: int = option(
        1,
        "threads that step them, each its part with a stream of its own: for environments that wait, "
        "for a device or another process, rather than compute",
        at_least=1,
        at_most=1024,
    )
    niceness: int = option(
        0,
        "how far this process stands back for others where cores are short (nice, and as a batch "
        "process where there are such): 0 for not at all, 19 for as far as it can",
        at_least=0,
        at_most=19,
    )
    seed: int = option(
        1,
        "seed of the environments; -1 for one that is drawn at random, where many actors are started by "
        "the same words",
        at_least=-1,
        at_most=2**31 - 1,
    )
    mode: Literal["train", "evaluate"] = option(
        "train", "train acts by the exploring policy and makes training data; evaluate acts greedily"
    )
    video: str | None = option(None, "record environment 0's first episode to this file: .mp4 or .gif")
    connect_timeout_seconds: float = option(
        0.0,
        "how long to look for a learner, at the start or after it was lost, before ending with an "
        "error, in seconds; 0 for as long as it takes",
        at_least=0,
    )
    name: str = option("", "this actor's name in the learner's log; if not given, HOST:PID")
    interrupted_status: int = option(
        0,
        "exit status after SIGTERM: another one than 0, such as 143, where whoever starts actors takes "
        "0 for a run that has ended",
        at_least=0,
        at_most=255,
    )
    parent: int = option(
        0,
        "process id; where that process is not this one's parent (any more), a learner that is gone is "
        "not waited for. `seedbed train` gives its own; 0 for none",
        at_least=0,
    )
    describe: bool = option(
        False, "reset --env once, print its observation and action specs as JSON, and do nothing else"
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.env:
            raise ConfigError("--env is required: what to step")
        if self.num_threads > self.num_envs:
            raise ConfigError(
                f"--num-threads {self.num_threads}: expected at most one an environment, found "
                f"--num-envs {self.num_envs}"
            )
        check_video(self.video)
        check_server(self.server)
        self.credentials()
