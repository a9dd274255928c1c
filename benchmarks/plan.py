"""How far `seedbed plan` is from what `seedbed train` then does.

    python -m benchmarks.plan [--env CartPole-v1] [--levels '[1, 2, 4]'] [--envs-per-actor 16] [--json]

Takes the options of `seedbed plan`, and does at each level what that does with so many actors: finds the
costs, corrects them by a short run (of no more actors than there are cores), predicts. Then a longer run
measures. The error is the prediction's, as a part of what was measured: the bar is 25 %. On a machine
that others use both are wrong, each in its own way: the last lines say so.
"""

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import machine, output
from benchmarks.measure import Meter, Window
from benchmarks.train_run import Rates, measure_run
from learner.config import TrainOptions
from learner.planning.costs import find_costs
from learner.planning.model import predict
from learner.planning.options import PlanOptions
from learner.planning.plan import deployment_of
from learner.presets import starting_values
from protos.options import option, parse, peek

ENV = "CartPole-v1"

BAR = 0.25
"""Largest error that a prediction may have."""


@dataclass(frozen=True)
class PlanBenchmarkOptions(PlanOptions):
    """`seedbed plan`, and what to compare it with."""

    env: str | None = option(ENV, "environment, as in `seedbed train`")
    levels: tuple[int, ...] = option((1, 2, 4), "numbers of actors to compare at", at_least=1)
    total_steps: int = option(10**12, "environment steps of the runs, for schedules", at_least=1)
    log_interval_seconds: float = option(0.5, "seconds between two readings", above=0)
    drop_seconds: float = option(3.0, "seconds of each run that are not counted", at_least=0)
    run_seconds: float = option(6.0, "seconds of each run that are", above=0)


def measure(options: PlanBenchmarkOptions) -> tuple[dict[str, Any], dict[str, Window]]:
    """The figures, and the windows in which they were taken."""
    windows, levels = {}, []
    for number in options.levels:
        here = dataclasses.replace(options, num_actors=number)
        meter = Meter({})
        costs, _ = find_costs(here)
        windows[f"the parts alone, {number} actors"] = meter.stop()
        prediction = predict(costs, deployment_of(here, machine.cores()))
        rates, windows[f"{number} actors"] = measure_run(
            _train_options(here), options.drop_seconds, options.run_seconds
        )
        levels.append(
            {
                "actors": number,
                "predicted": prediction.rate,
                "measured": rates.steps_per_second,
                "error": prediction.rate / rates.steps_per_second - 1,
                "bound_by": prediction.bound_by,
                **_others(prediction.batch, prediction.actor_idle, rates),
            }
        )
    return {"levels": levels, "within_bar": all(abs(e["error"]) <= BAR for e in levels)}, windows


def _others(batch: float, idle: float, rates: Rates) -> dict[str, float | None]:
    """What else was predicted, beside what was measured of it."""
    return {
        "predicted_batch": batch,
        "measured_batch": rates.mean_batch,
        "predicted_idle": idle,
        "measured_idle": rates.actors_idle,
    }


def _train_options(options: PlanBenchmarkOptions) -> TrainOptions:
    names = [entry.name for entry in dataclasses.fields(TrainOptions)]
    return TrainOptions(**{name: getattr(options, name) for name in names})


def tables(options: PlanBenchmarkOptions, result: dict[str, Any]) -> list[str]:
    """What to print."""
    names = ("actors", "predicted", "measured", "error", "bound_by", "predicted_batch", "measured_batch")
    headers = ("actors", "predicted", "measured", "error", "bound by", "batch, predicted", "measured")
    rows = [[level[name] for name in names] for level in result["levels"]]
    verdict = "within" if result["within_bar"] else "NOT within"
    return [
        f"{options.env}, environment steps/s of actors x {options.envs_per_actor} environments",
        output.table(headers, rows),
        f"{verdict} {100 * BAR:.0f} %",
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    preset = starting_values(
        peek(arguments, "preset") or "auto", peek(arguments, "env") or ENV, peek(arguments, "agent")
    )
    # The learning rate's schedule must not end within the measurement.
    preset = {name: value for name, value in preset.items() if name != "total_steps"}
    options = parse(
        PlanBenchmarkOptions,
        arguments,
        prog="benchmarks.plan",
        description=__doc__ or "",
        preset=preset,
    )
    where = machine.describe()
    result, windows = measure(options)
    whole = output.whole("plan", where, options, result, windows)
    output.show([*tables(options, result), output.warning(windows)], whole, options.json)


if __name__ == "__main__":
    main()
