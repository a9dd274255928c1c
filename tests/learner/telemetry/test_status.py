"""What status.json says, from made-up intervals and a clock that the test moves."""

import json
import logging
from typing import Any

from learner.telemetry.evaluations import Evaluation
from learner.telemetry.learning_curve import Curve, CurvePoint, LearningCurve
from learner.telemetry.problems import Problems
from learner.telemetry.report import Report, SessionReport
from learner.telemetry.status import MAX_EVALUATIONS, MAX_POINTS, MAX_SESSIONS, MAX_VERSIONS, Status
from protos.version import version


class Watched:
    """A status with its surroundings in the test's hands."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sessions: list[SessionReport] = []
        self.problems = Problems(clock=lambda: 5.0)
        self.status = Status(
            env="CartPole-v1",
            agent="ppo",
            interval_seconds=2.0,
            sessions=lambda: self.sessions,
            problems=self.problems,
            clock=lambda: self.now,
        )

    def show(self, values: dict[str, Any] | None = None, **changes: Any) -> None:
        fields = {
            "env_steps": 10,
            "total_steps": 100,
            "seconds": 1.0,
            "steps_per_second": 9.0,
            **changes,
        }
        self.status.show(Report(**fields), values or {})

    def json(self) -> dict[str, Any]:
        """What is said once the former answer is too old."""
        self.now += 1.0
        response = self.status.response()
        assert response.content_type == "application/json"
        state: dict[str, Any] = json.loads(response.body)
        return state


def session(number: int = 1, **changes: Any) -> SessionReport:
    fields = {
        "client": f"actor {number}", "client_version": "0.1.0", "environments": 4, "steps": 0,
        "connected": True, "trains": True, **changes,
    }  # fmt: skip
    return SessionReport(number, **fields)


def test_before_training_the_phase_is_known_and_nothing_else() -> None:
    watched = Watched()
    watched.status.enter("building the agent")
    assert watched.json() == {
        "run": {
            "env": "CartPole-v1",
            "agent": "ppo",
            "version": version(),
            "interval_seconds": 2.0,
            "phase": "building the agent",
        },
        "age_seconds": None,
        "checkpoint_age_seconds": None,
        "checkpoints_saved": 0,
        "curve": [],
        "evaluations": [],
        "problems": [],
    }


def test_an_interval_is_shown_with_its_age() -> None:
    watched = Watched()
    watched.show({"queue/depth": 3, "queue/capacity": 8, "serving/count_errors_invalid_argument": 2})
    watched.now += 4.0
    state = watched.json()
    assert state["age_seconds"] == 5.0
    assert state["report"]["env_steps"] == 10
    assert state["report"]["seconds_left"] == 10.0
    assert state["verdict"] == "waiting for actors: none connected"
    assert state["queues"] == [{"name": "Unrolls waiting for training", "depth": 3, "capacity": 8}]
    assert state["refused"] == {"invalid_argument": 2}


def test_what_is_not_finite_is_null() -> None:
    watched = Watched()
    watched.show(training={"loss": float("nan")}, policy_lag=float("inf"))
    report = watched.json()["report"]
    assert (report["training"], report["policy_lag"]) == ({"loss": None}, None)


def test_sessions_have_the_rate_of_the_interval() -> None:
    watched = Watched()
    watched.sessions = [session(1, steps=100)]
    watched.show()
    assert watched.json()["sessions"]["listed"][0]["steps_per_second"] is None
    watched.now += 3.0
    watched.sessions = [session(1, steps=180), session(2, steps=5, connected=False)]
    watched.show()
    one, two = watched.json()["sessions"]["listed"]
    assert (one["client"], one["steps_per_second"], one["connected"]) == ("actor 1", 20.0, True)
    assert (two["client"], two["steps_per_second"], two["connected"]) == ("actor 2", None, False)
    # Its place is another's, whose steps begin at 0.
    watched.sessions = [session(3, steps=7)]
    watched.show()
    assert watched.json()["sessions"]["listed"][0]["steps_per_second"] is None


def test_of_many_sessions_the_slowest_are_listed_in_a_steady_order() -> None:
    watched = Watched()
    count = 2 * MAX_SESSIONS
    names = {number: f"{(7 * number) % count:04}" for number in range(count)}
    watched.sessions = [session(number, client=names[number]) for number in range(count)]
    watched.show()
    watched.now += 1.0
    watched.sessions = [
        session(n, client=names[n], steps=n, client_version=f"{n}") for n in range(count)
    ]
    watched.show()
    sessions = watched.json()["sessions"]
    listed = [each["client"] for each in sessions["listed"]]
    assert listed == sorted(names[number] for number in range(MAX_SESSIONS))
    assert sessions["total"] == count
    assert len(sessions["versions"]) == MAX_VERSIONS


def test_versions_are_counted() -> None:
    watched = Watched()
    watched.sessions = [session(1, client_version=""), *(session(n) for n in (2, 3))]
    watched.show()
    assert watched.json()["sessions"]["versions"] == [["0.1.0", 2], ["", 1]]


def test_the_newest_checkpoint_is_as_old_as_for_prometheus() -> None:
    watched = Watched()
    watched.show({"checkpoints/saved": 0, "checkpoints/age_seconds": 30.0})
    watched.now += 9.0
    state = watched.json()
    assert (state["checkpoints_saved"], state["checkpoint_age_seconds"]) == (0, 40.0)
    watched.show({"checkpoints/saved": 1, "checkpoints/age_seconds": 2.0})
    state = watched.json()
    assert (state["checkpoints_saved"], state["checkpoint_age_seconds"]) == (1, 3.0)
    # Another learner than a group's first one saves none.
    watched.show({})
    assert watched.json()["checkpoint_age_seconds"] is None


def test_the_curve_is_cut_to_a_pictures_points_up_to_the_newest() -> None:
    watched, curve = Watched(), LearningCurve()
    for episode in range(1, 1001):
        curve.add(10 * episode, 0.0, float(episode))
    results = [Evaluation(n, 0.0, n, 5, 1.0, 0.0, 1.0, 1.0) for n in range(2 * MAX_EVALUATIONS)]
    watched.status.follow(curve.snapshot, lambda: results)
    state = watched.json()
    assert len(state["curve"]) == MAX_POINTS
    assert state["curve"][0] == [50, 3.0, 3.0]
    assert state["curve"][-1] == [10_000, 998.0, 950.5]
    assert [each["version"] for each in state["evaluations"]] == list(
        range(MAX_EVALUATIONS, 2 * MAX_EVALUATIONS)
    )


def test_a_short_curve_is_whole() -> None:
    watched = Watched()
    watched.status.follow(lambda: Curve([CurvePoint(5, 0.0, 2.0), CurvePoint(9, 0.0, 4.0)], 1), list)
    assert watched.json()["curve"] == [[5, 2.0, 2.0], [9, 4.0, 3.0]]


def test_problems_are_shown() -> None:
    watched = Watched()
    watched.problems.handle(logging.makeLogRecord({"msg": "disk full", "levelno": logging.ERROR}))
    assert watched.json()["problems"] == [
        {"level": "ERROR", "text": "disk full", "times": 1, "first": 5.0, "last": 5.0}
    ]


def test_many_who_ask_make_one_answer_a_second() -> None:
    watched = Watched()
    first = watched.status.response()
    watched.show()
    watched.now += 0.9
    assert watched.status.response() is not first
    assert watched.status.response().body is first.body
    watched.now += 0.2
    assert b"verdict" in watched.status.response().body
