"""How a run has ended, by table."""

from typing import Any

import pytest

from learner.config import LearnerOptions
from learner.telemetry.ending import Ending, reached, stored_goal
from learner.telemetry.episodes import EpisodeTracker
from learner.telemetry.evaluations import Evaluation, Evaluations

OPTIONS = LearnerOptions(total_steps=1000, stop_return=475.0, stop_eval_return=400.0, eval_interval=100)


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"finished": True, "goal": "--total-steps 1000"},
         "finished: --total-steps 1000 is reached; saved"),
        # The signal that came too late has ended nothing.
        ({"finished": True, "goal": "--stop-return 5", "signal": "SIGTERM"},
         "finished: --stop-return 5 is reached; saved"),
        ({"finished": True}, "finished; saved"),
        ({"signal": "SIGTERM"}, "ended by SIGTERM at step 1,234 of 5,000; saved; the same goes on"),
        ({"signal": "SIGINT", "saved": False},
         "ended by SIGINT at step 1,234 of 5,000; not saved; the same goes on"),
        ({"failed": True}, "failed at step 1,234 of 5,000; saved"),
        ({"failed": True, "finished": True, "saved": False}, "failed at step 1,234 of 5,000; not saved"),
        ({}, "ended at step 1,234 of 5,000; saved"),
    ],
)  # fmt: skip
def test_words(known: dict[str, Any], words: str) -> None:
    nothing: dict[str, Any] = {
        "env_steps": 1234, "total_steps": 5000, "finished": False, "goal": None, "signal": "",
        "failed": False, "saved": True,
    }  # fmt: skip
    assert Ending(**{**nothing, **known}).words("the same goes on") == words


@pytest.mark.parametrize(
    ("steps", "solved", "evaluated", "goal"),
    [
        (999, None, [399.0], None),
        (1000, None, [399.0], "--total-steps 1000"),
        (999, None, [400.0, 10.0], "--stop-eval-return 400"),
        (999, [900, 5.0], [], "--stop-return 475"),
    ],
)
def test_reached(
    steps: int, solved: list[float] | None, evaluated: list[float], goal: str | None
) -> None:
    tracker = EpisodeTracker(1, stop_return=475.0)
    tracker.restore({**tracker.state(), "env_steps": steps, "solved": solved})
    results = [Evaluation(100, 1.0, 1, 1, value, 0.0, value, value) for value in evaluated]
    assert reached(OPTIONS, tracker, results) == goal
    stored = Evaluations(1, 1)
    stored.restore([list(each) for each in results])
    assert stored_goal(OPTIONS, tracker.state(), stored.state()) == goal
