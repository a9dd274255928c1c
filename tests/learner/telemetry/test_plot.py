"""The picture of a run: what is written on it, and what is drawn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from learner.telemetry.learning_curve import Curve, CurvePoint
from learner.telemetry.plot import write_learning_curve


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    drawn: list[Figure] = []
    savefig = Figure.savefig

    def keep(self: Figure, *args: Any, **kwargs: Any) -> None:
        drawn.append(self)
        savefig(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)
    return drawn


def test_axes_say_what_they_are(tmp_path: Path, figures: list[Figure]) -> None:
    path = tmp_path / "curve.png"
    points = [CurvePoint(step, 0.0, step / 10) for step in range(0, 3000, 10)]
    write_learning_curve(path, Curve(points, 1), title="vtrace on CartPole-v1", stop_return=475)
    axes = figures[0].axes[0]
    assert axes.get_xlabel() == "environment steps"
    assert axes.get_ylabel() == "episode return"
    assert axes.get_title() == "vtrace on CartPole-v1"
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        "one episode",
        "running mean of 100 episodes",
        "stop return 475",
    ]
    assert imread(path).shape == (600, 960, 4)


def test_running_mean_is_drawn_over_the_episodes(tmp_path: Path, figures: list[Figure]) -> None:
    points = [CurvePoint(step, 0.0, float(step % 2)) for step in range(200)]
    write_learning_curve(tmp_path / "curve.png", Curve(points, 50), title="x")
    episodes, mean = figures[0].axes[0].get_lines()
    assert np.asarray(episodes.get_ydata()).tolist() == [point.mean_return for point in points]
    assert np.asarray(mean.get_xdata()).tolist() == list(range(200))
    assert np.asarray(mean.get_ydata()).tolist()[1:] == [0.5] * 199
    assert mean.get_label() == "running mean of 100 episodes"


def test_no_episode_is_no_error(tmp_path: Path) -> None:
    write_learning_curve(tmp_path / "curve.png", Curve([], 1), title="x")
    assert [path.name for path in tmp_path.iterdir()] == ["curve.png"]
