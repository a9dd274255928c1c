"""How fast `seedbed train` is at steady state, and how fast this machine could be.

    python -m benchmarks.training [--env CartPole-v1] [--num-actors 2] [--envs-per-actor 16] [--json]

Takes every option of `seedbed train` and hands it on. Rates are in agent steps: never multiplied by a
frame skip. The same run measures what no system can save, each alone on one core: stepping the
environments, the policy on whole batches, the update. `ratio` is the measured rate as a part of

    cores / (t_environment + t_policy + t_training)

A rate counts only if as much is trained on as is sampled: `trained_ratio` within 5 % of 1, and what the
window is too short to tell (`trained_ratio_resolution`).
"""

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import machine, output
from benchmarks.children import child
from benchmarks.measure import Meter, Window
from benchmarks.roofline import Cost, environment_cost, policy_cost, training_cost
from benchmarks.train_run import Rates, measure_run
from learner.config import TrainOptions
from learner.presets import starting_values
from protos.options import option, parse, peek
from protos.specs import EnvironmentSpec

ENV = "CartPole-v1"

TRAINED_RATIO_TOLERANCE = 0.05


@dataclass(frozen=True)
class TrainingOptions(TrainOptions):
    """`seedbed train`, and how to measure it."""

    env: str | None = option(ENV, "environment, as in `seedbed train`")
    total_steps: int = option(10**12, "environment steps of the run, for schedules", at_least=1)
    log_interval_seconds: float = option(0.5, "seconds between two readings", above=0)
    repeats: int = option(2, "runs", at_least=1)
    drop_seconds: float = option(3.0, "seconds of each run that are not counted", at_least=0)
    seconds: float = option(5.0, "seconds of each run that are", above=0)
    alone_seconds: float = option(1.5, "CPU seconds for each part alone", above=0)
    json: bool = option(False, "print one JSON object on the last line")

    @property
    def environments(self) -> int:
        return self.num_actors * self.envs_per_actor


def measure(options: TrainingOptions) -> tuple[dict[str, Any], dict[str, Window]]:
    """The figures, and the windows in which they were taken."""
    meter = Meter({})
    costs = _costs(options)
    windows = {"the parts alone": meter.stop()}
    runs: list[Rates] = []
    for repeat in range(options.repeats):
        rates, window = measure_run(options, options.drop_seconds, options.seconds)
        runs.append(rates)
        windows[f"run {repeat + 1}"] = window
    alone = sum(cost.seconds for cost in costs.values())
    rate = statistics.median(run.steps_per_second for run in runs)
    spent = statistics.median(run.cpu_seconds_per_million for run in runs)
    roofline = machine.cores() / alone
    result = {
        "steps_per_second": rate,
        "roofline_steps_per_second": roofline,
        "ratio": rate / roofline,
        "cpu_seconds_per_million": spent,
        "cpu_ratio": alone * 1e6 / spent,
        "valid": all(map(is_valid, runs)),
        "alone_cpu_seconds_per_million": {name: cost.seconds * 1e6 for name, cost in costs.items()},
        "runs": [run._asdict() for run in runs],
    }
    return result, windows


def is_valid(run: Rates) -> bool:
    """Whether the run has trained on what it sampled."""
    tolerance = TRAINED_RATIO_TOLERANCE + run.trained_ratio_resolution
    return abs(run.trained_ratio - 1) <= tolerance


def _costs(options: TrainingOptions) -> dict[str, Cost]:
    """Each part alone, one after the other."""
    seconds, warm_up = options.alone_seconds, options.alone_seconds / 4
    stepping = (options.env, options.envs_per_actor, warm_up, seconds)
    with child("environments alone", environment_cost, *stepping) as process:
        spec: EnvironmentSpec = process.answer()
        environment: Cost = process.answer()
    acting = (options, spec, options.environments, warm_up, seconds)
    with child("policy alone", policy_cost, *acting) as process:
        policy: Cost = process.answer()
    with child("training alone", training_cost, options, spec, warm_up, seconds) as process:
        training: Cost = process.answer()
    return {"environment": environment, "policy": policy, "training": training}


def tables(options: TrainingOptions, result: dict[str, Any]) -> list[str]:
    """What to print."""
    names = (
        "steps_per_second",
        "cpu_seconds_per_million",
        "trained_ratio",
        "trained_ratio_resolution",
        "mean_batch",
        "policy_lag",
    )
    headers = (
        "run",
        "steps/s",
        "CPU s / million",
        "trained / sampled",
        "+-",
        "mean batch",
        "policy lag",
    )
    runs = [[str(index + 1), *(run[name] for name in names)] for index, run in enumerate(result["runs"])]
    alone = result["alone_cpu_seconds_per_million"]
    costs = [
        *([f"{name} alone", seconds] for name, seconds in alone.items()),
        ["together", sum(alone.values())],
        ["measured in the runs", result["cpu_seconds_per_million"]],
        ["together / measured", result["cpu_ratio"]],
    ]
    rates = [
        ["steps/s, median", result["steps_per_second"]],
        [f"roofline of {machine.cores()} cores", result["roofline_steps_per_second"]],
        ["ratio", result["ratio"]],
    ]
    void = "" if result["valid"] else "VOID: more or less was trained on than sampled"
    title = f"{options.env}, {options.num_actors} actors x {options.envs_per_actor} environments"
    return [
        title,
        output.table(headers, runs),
        output.table(("CPU", "s / million steps"), costs),
        output.table(("", "value"), rates),
        void,
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    preset = starting_values(
        peek(arguments, "preset") or "auto",
        peek(arguments, "env") or ENV,
        peek(arguments, "agent"),
    )
    # The learning rate's schedule must not end within the measurement.
    preset = {name: value for name, value in preset.items() if name != "total_steps"}
    options = parse(
        TrainingOptions,
        arguments,
        prog="benchmarks.training",
        description=__doc__ or "",
        preset=preset,
    )
    where = machine.describe()
    result, windows = measure(options)
    whole = output.whole("training", where, options, result, windows)
    output.show([*tables(options, result), output.warning(windows)], whole, options.json)


if __name__ == "__main__":
    main()
