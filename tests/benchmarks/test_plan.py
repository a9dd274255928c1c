"""The comparison of plans with runs, both played."""

import json
from typing import Any

import pytest

from benchmarks import plan
from benchmarks.measure import Window
from benchmarks.train_run import Rates
from learner.config import TrainOptions
from learner.planning.model import Costs, Line

MS = 1e-3

COSTS = Costs(
    environment=Line(0.0, 0.01 * MS),
    actor_message=Line(0.5 * MS, 0.0),
    learner_message=Line(0.5 * MS, 0.0),
    event_loop=Line(0.3 * MS, 0.0),
    policy_call=Line(0.5 * MS, 0.0),
    training=0.01 * MS,
    wire=Line(100.0, 30.0),
)
QUIET = Window(
    began=0.0, seconds=1.0, cpu_seconds={}, own_cpu_seconds=1.0, raw_foreign_cpu=0.0, steal=0.0
)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[TrainOptions]:
    """Runs of 6,000 steps/s an actor."""
    seen: list[TrainOptions] = []

    def measure_run(options: TrainOptions, drop: float, seconds: float) -> tuple[Rates, Window]:
        seen.append(options)
        return Rates(6000.0 * options.num_actors, 1.0, 0.1, 100.0, 16.0, 1.0, 0.5, 0.5, 0.25), QUIET

    monkeypatch.setattr(plan, "measure_run", measure_run)
    monkeypatch.setattr(plan, "find_costs", lambda options: (COSTS, {}))
    monkeypatch.setattr(plan.machine, "cores", lambda: 4)
    return seen


def result(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_each_level_is_predicted_and_run(
    runs: list[TrainOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    plan.main(["--levels=[1,3]", "--unroll-length=4", "--json"])
    found = result(capsys)
    assert [run.num_actors for run in runs] == [1, 3]
    assert {(run.env, run.unroll_length, run.total_steps) for run in runs} == {
        ("CartPole-v1", 4, 10**12)
    }
    one, three = found["levels"]
    # 0.66 ms in the actor, 1 ms in the learner, for 16 environments.
    assert one["predicted"] == pytest.approx(16 / (1.66 * MS))
    assert one["error"] == pytest.approx(16 / (1.66 * MS) / 6000 - 1)
    assert three["measured"] == 18_000
    assert found["within_bar"] is False


def test_predictions_within_the_bar_are_said(
    runs: list[TrainOptions], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "BAR", 2.0)
    plan.main(["--levels=[1]"])
    assert "within 200 %" in capsys.readouterr().out.splitlines()
