"""What runs came to, as the table and the pictures of docs/results.md.

    python -m benchmarks.results runs/cartpole-ppo-* [--picture docs/images/cartpole-ppo.png]

Reads the run directories that `seedbed train` has left; runs of one preset (or one agent and
environment) are one row, whatever their seeds.
"""

import argparse
import json
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import output
from learner.telemetry.evaluations import Evaluation
from learner.telemetry.learning_curve import LearningCurve, running_mean
from learner.telemetry.run_directory import CONFIG, checkpoints_folder, read_config
from learner.training.checkpoint import Checkpoints
from protos.errors import ConfigError

SMOOTHED_EPISODES = 100


@dataclass(frozen=True)
class Run:
    """A finished run."""

    name: str
    """preset, or agent and environment"""
    seed: int
    summary: dict[str, Any]
    curve: LearningCurve
    evaluations: list[Evaluation]


def read_run(path: Path) -> Run:
    """The run in `path`.

    Raises:
        ConfigError: there is none, or it has not come to its end.
    """
    config = read_config(path)
    try:
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: expected a finished run, found no summary.json") from None
    checkpoint = Checkpoints(checkpoints_folder(path), 1).load_latest()
    if checkpoint is None:
        raise ConfigError(f"{path}: expected a finished run, found no checkpoint")
    curve = LearningCurve()
    curve.restore(checkpoint.require("episodes")["curve"])
    preset = config.get("preset", "auto")
    name = preset if preset not in ("auto", "none") else f"{config['agent']} on {config.get('env')}"
    evaluations = [Evaluation(*result) for result in checkpoint.metadata.get("evaluations", [])]
    return Run(name, int(config["seed"]), summary, curve, evaluations)


def rows(runs: Iterable[Run]) -> list[list[Any]]:
    """A row for each name, with the figures of its seeds side by side."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.name].append(run)
    return [_row(name, sorted(group, key=lambda run: run.seed)) for name, group in groups.items()]


def _row(name: str, runs: Sequence[Run]) -> list[Any]:
    def each(key: str, form: str) -> str:
        values = [run.summary.get(key) for run in runs]
        return ", ".join("-" if value is None else format(value, form) for value in values)

    return [
        name,
        ", ".join(str(run.seed) for run in runs),
        each("env_steps", ",d"),
        each("seconds", ".0f"),
        each("mean_return_100", ".1f"),
        each("last_evaluation", ".1f"),
    ]


HEADERS = ("run", "seeds", "environment steps", "seconds", "mean of 100 episodes", "last evaluation")


def draw(runs: Sequence[Run], path: Path) -> None:
    """All runs' curves, smoothed over 100 episodes, in one small picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(4.5, 3), dpi=90, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for run in sorted(runs, key=lambda run: (run.name, run.seed)):
        curve = run.curve.snapshot()
        window = max(SMOOTHED_EPISODES // curve.episodes_per_point, 1)
        steps = [point.env_steps for point in curve.points]
        means = running_mean([point.mean_return for point in curve.points], window)
        axes.plot(steps, means, linewidth=1, label=f"seed {run.seed}")
        if run.evaluations:
            at = [evaluation.env_steps for evaluation in run.evaluations]
            returns = [evaluation.mean_return for evaluation in run.evaluations]
            axes.plot(at, returns, ".", markersize=4, color=axes.lines[-1].get_color())
    axes.set_title(", ".join(dict.fromkeys(run.name for run in runs)), fontsize=9)
    axes.set_xlabel("environment steps")
    axes.set_ylabel(f"return, mean of {SMOOTHED_EPISODES}")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.savefig(path, format="png")


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.results", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="run directories")
    parser.add_argument("--picture", type=Path, help="draw the curves to this PNG")
    options = parser.parse_args(sys.argv[1:] if argv is None else argv)
    try:
        runs = [read_run(path) for path in options.runs if (path / CONFIG).exists()]
    except (ConfigError, tomllib.TOMLDecodeError) as error:
        parser.error(str(error))
    if not runs:
        parser.error("expected run directories, found none")
    output.show([output.table(HEADERS, rows(runs))], {}, as_json=False)
    if options.picture:
        draw(runs, options.picture)


if __name__ == "__main__":
    main()
