"""Who is slow, by table."""

from typing import Any

import pytest

from learner.telemetry.report import Report
from learner.telemetry.verdict import verdict


def report(**values: Any) -> Report:
    given = {
        "env_steps": 1000, "total_steps": 10_000, "seconds": 10.0, "steps_per_second": 100.0,
        "actors": 2, "environments": 32, "batch_mean": 11.0, "batch_max": 64, "queue_capacity": 16,
    }  # fmt: skip
    return Report(**{**given, **values})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            {"actors": 0},
            "waiting for actors: none connected",
        ),
        (
            {"training_busy": 0.82, "inference_busy": 0.3, "actors_idle": 0.4, "queue_depth": 3},
            "learner-bound: training busy 82 %, inference batch 11 of 64, actors idle 40 %",
        ),
        (
            # Both are busy, and the queue between them is full: acting waits for learning.
            {"training_busy": 0.9, "inference_busy": 0.95, "actors_idle": 0.6, "queue_depth": 16},
            "learner-bound: training busy 90 %, inference busy 95 %, inference batch 11 of 64, "
            "actors idle 60 %",
        ),
        (
            {"training_busy": 0.9, "inference_busy": 0.95, "actors_idle": 0.6, "queue_depth": 1},
            "inference-bound: training busy 90 %, inference busy 95 %, inference batch 11 of 64, "
            "actors idle 60 %",
        ),
        (
            {"training_busy": 0.1, "inference_busy": 0.99, "actors_idle": 0.9, "batch_mean": 64.0},
            "inference-bound: training busy 10 %, inference busy 99 %, inference batch 64 of 64, "
            "actors idle 90 %",
        ),
        (
            {"training_busy": 0.2, "inference_busy": 0.3, "actors_idle": 0.05},
            "actor-bound: training busy 20 %, inference busy 30 %, inference batch 11 of 64, "
            "actors idle 5 %",
        ),
        (
            {"training_busy": 0.2, "inference_busy": 0.3, "actors_idle": None},
            "actor-bound: training busy 20 %, inference busy 30 %, inference batch 11 of 64",
        ),
        (
            {"training_busy": 0.5, "inference_busy": 0.5, "actors_idle": 0.5},
            "balanced: training busy 50 %, inference busy 50 %, inference batch 11 of 64, "
            "actors idle 50 %",
        ),
        (
            {"training_busy": 0.08, "inference_busy": 0.17, "actors_idle": 0.41},
            "round trips: training busy 8 %, inference busy 17 %, inference batch 11 of 64, "
            "actors idle 41 %",
        ),
        (
            {"training_busy": 0.1, "inference_busy": 0.1, "actors_idle": 0.4, "event_loop_busy": 0.9},
            "balanced: training busy 10 %, inference busy 10 %, inference batch 11 of 64, "
            "actors idle 40 %",
        ),
        (
            {"training_busy": 0.1, "inference_busy": 0.1, "actors_idle": 0.4, "queue_depth": 16},
            "balanced: training busy 10 %, inference busy 10 %, inference batch 11 of 64, "
            "actors idle 40 %",
        ),
        (
            # A full queue says that acting waits, so the actors cannot be what is slow.
            {"training_busy": 0.5, "inference_busy": 0.5, "actors_idle": 0.1, "queue_depth": 16},
            "balanced: training busy 50 %, inference busy 50 %, inference batch 11 of 64, "
            "actors idle 10 %",
        ),
    ],
)
def test_verdict(values: dict[str, Any], expected: str) -> None:
    assert verdict(report(**values)) == expected
