"""learning_curve.png: environment steps against return."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from learner.telemetry.atomic import replace_file
from learner.telemetry.evaluations import Evaluation
from learner.telemetry.learning_curve import Curve, running_mean

SMOOTHED_EPISODES = 100


def write_learning_curve(
    path: Path,
    curve: Curve,
    *,
    title: str,
    evaluations: Sequence[Evaluation] = (),
    stop_return: float | None = None,
) -> None:
    """Draw the curve, its running mean over 100 episodes, and the evaluations; replaces `path`
    atomically.

    Raises:
        OSError: it cannot be written.
    """
    # The object API: pyplot would keep every figure in a global, and ask for a display.
    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    steps = [point.env_steps for point in curve.points]
    returns = [point.mean_return for point in curve.points]
    size = curve.episodes_per_point
    window = max(SMOOTHED_EPISODES // size, 1)
    each = "one episode" if size == 1 else f"mean of {size} episodes"
    axes.plot(steps, returns, ".", color="tab:blue", alpha=0.3, markersize=3, label=each)
    axes.plot(
        steps,
        running_mean(returns, window),
        color="tab:orange",
        linewidth=2,
        label=f"running mean of {window * size} episodes",
    )
    if evaluations:
        axes.plot(
            [evaluation.env_steps for evaluation in evaluations],
            [evaluation.mean_return for evaluation in evaluations],
            "s-",
            color="tab:red",
            markersize=4,
            label=f"evaluations: mean of {evaluations[-1].episodes} episodes",
        )
    if stop_return is not None:
        axes.axhline(
            stop_return, color="tab:green", linestyle="--", label=f"stop return {stop_return:g}"
        )
    axes.set_xlabel("environment steps")
    axes.set_ylabel("episode return")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(loc="best")
    with replace_file(path) as file:
        figure.savefig(file, format="png")
