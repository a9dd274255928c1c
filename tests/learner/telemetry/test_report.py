"""The flat object of metrics.jsonl."""

from learner.telemetry.report import Report, metrics


def test_metrics_hold_the_report_the_scalars_and_the_statistics() -> None:
    report = Report(
        env_steps=10, total_steps=100, seconds=2.0, steps_per_second=5.0, training={"loss": 0.5}
    )
    values = metrics(report, {"queue/depth": 3.0})
    assert values["queue/depth"] == 3.0
    assert values["loss"] == 0.5
    assert values["mean_return_100"] is None
    assert {"env_steps", "seconds", "steps_per_second", "episodes", "policy_lag"} <= set(values)
    assert "training" not in values


def test_a_training_scalar_cannot_hide_the_reports_own_numbers() -> None:
    report = Report(
        env_steps=10, total_steps=100, seconds=2.0, steps_per_second=5.0, training={"seconds": 9.0}
    )
    assert metrics(report, {})["seconds"] == 2.0


def test_seconds_left_follow_from_the_rate() -> None:
    def left(env_steps: int, rate: float) -> float | None:
        return Report(
            env_steps=env_steps, total_steps=100, seconds=1.0, steps_per_second=rate
        ).seconds_left

    assert left(50, 5.0) == 10
    assert left(110, 5.0) == 0
    assert left(50, 0.0) is None
