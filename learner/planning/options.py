"""Options of `seedbed plan` and `seedbed tune`: those of `seedbed train`, and what is asked of them."""

from dataclasses import dataclass

from learner.config import TrainOptions
from learner.presets import known_frame_skip
from protos.errors import ConfigError
from protos.options import option

COST_OPTIONS = (
    "environment_us_per_step",
    "actor_us_per_message",
    "learner_us_per_message",
    "inference_us_per_call",
    "inference_us_per_row",
    "training_us_per_step",
    "bytes_per_step",
)
"""Costs that a user may give; where all are given, nothing is measured."""

MIN_TUNE_SECONDS = 30.0
"""Starting TensorFlow and a first trial of each kind take as long as that."""


def _refuse_threads(options: TrainOptions, command: str) -> None:
    if options.threads_per_actor > 1:
        raise ConfigError(
            f"--threads-per-actor {options.threads_per_actor}: seedbed {command} knows what "
            "environments compute, not how long they wait: leave it out"
        )


@dataclass(frozen=True)
class PlanOptions(TrainOptions):
    """`seedbed plan`: what a deployment would reach, from what its parts cost on this machine."""

    cores: float = option(
        0.0, "cores of the learner's machine, which actors share; 0 for those of this one", at_least=0
    )
    actor_cores: float = option(
        0.0,
        "cores of the actors' own machines together; 0 if actors share the learner's machine",
        at_least=0,
    )
    learner_cores: float = option(
        0.0,
        "cores of a machine that the learner has to itself, next to --actor-cores; 0 for --cores",
        at_least=0,
    )
    network_mbits: float = option(
        0.0,
        "network between actors and learner, both ways together, in Mbit/s; 0 for no limit",
        at_least=0,
    )
    frame_skip: int = option(
        0, "frames of an environment step; 0 for 4 of ALE/*, else 1", at_least=0, at_most=1000
    )
    environment_us_per_step: float | None = option(
        None, "CPU microseconds of a step of one environment; if not given, measured", at_least=0
    )
    actor_us_per_message: float | None = option(
        None, "CPU microseconds of a message in the actor; if not given, measured", at_least=0
    )
    learner_us_per_message: float | None = option(
        None,
        "CPU microseconds of a message in the learner's event loop; if not given, measured",
        at_least=0,
    )
    inference_us_per_call: float | None = option(
        None, "CPU microseconds of a policy call, whatever its size; if not given, measured", at_least=0
    )
    inference_us_per_row: float | None = option(
        None,
        "accelerator's microseconds for a row of a policy call; if not given, measured here",
        above=0,
    )
    training_us_per_step: float | None = option(
        None,
        "accelerator's microseconds of training for an environment step; if not given, measured here",
        above=0,
    )
    bytes_per_step: float | None = option(
        None, "bytes on the wire for a step of one environment; if not given, counted", above=0
    )
    actor_core_price_per_hour: float = option(
        0.0, "price of a core of the actors, an hour; of every core if machines are shared", at_least=0
    )
    learner_price_per_hour: float = option(
        0.0, "price of the learner's machine, an hour, if actors have their own", at_least=0
    )
    calibrate: bool = option(
        True, "make a short run, and correct by it what parts cost alone; it takes some 15 s"
    )
    seconds: float = option(0.5, "CPU seconds for each measurement", above=0, at_most=60)
    json: bool = option(False, "print one JSON object instead of tables")

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_threads(self, "plan")
        if self.learner_cores and not self.actor_cores:
            raise ConfigError(
                f"--learner-cores {self.learner_cores:g} is a machine of the learner's own: say "
                "--actor-cores for those of the actors too, or --cores for one that they share"
            )

        if self.policy_engine == "numpy" and self.inference_us_per_row is not None:
            raise ConfigError(
                f"--inference-us-per-row {self.inference_us_per_row:g} is what an accelerator takes, "
                "and --policy-engine numpy uses none: leave out one of them"
            )

    @property
    def frames_per_step(self) -> int:
        return self.frame_skip or known_frame_skip(self.env) or 1

    @property
    def measures(self) -> bool:
        """Whether there is anything left to measure."""
        return any(getattr(self, name) is None for name in COST_OPTIONS)


@dataclass(frozen=True)
class TuneOptions(TrainOptions):
    """`seedbed tune`: the way to run a training that makes most environment steps on this machine."""

    seconds: float = option(90.0, "how long to search, in seconds", above=0, at_most=86_400)
    out: str = option("tuned.toml", "file to write, for the `--config` of `seedbed train`")
    tune_batch: bool = option(
        False, "also try other values of --batch-size, which changes what is learned"
    )
    max_actors: int = option(
        0, "most actor processes to try; 0 for twice the cores", at_least=0, at_most=4096
    )
    max_lag: float = option(
        4.0,
        "most versions of policy lag that environments may cause (environments / 2 B) where they are "
        "more than now; not for replays",
        above=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_threads(self, "tune")
        if self.seconds < MIN_TUNE_SECONDS:
            raise ConfigError(
                f"--seconds {self.seconds:g} is too short: expected at least {MIN_TUNE_SECONDS:g}: "
                "TensorFlow takes seconds to start and each trial some to settle"
            )
        if not self.out.endswith(".toml"):
            raise ConfigError(f"--out {self.out}: expected a name that ends in .toml")
