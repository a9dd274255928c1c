"""The actor's story, told with fakes."""

from collections.abc import Callable

import numpy as np
import pytest
from gymnasium import spaces

from actor.environments import make_environment
from actor.loop import run_actor
from actor.timestep import TimeStep, restart, transition
from actor.waiting import Interrupted
from protos.errors import EnvironmentFailure, InvalidRequest, RunEnded


class FakeEnvironment:
    """Counts its steps in the observation; raises `failure` at step `fails_at`."""

    num_envs = 2
    observation_space = spaces.Box(0, 100, (), np.float32)
    action_space = spaces.Discrete(1000)
    frames_per_second = 30.0

    def __init__(self, fails_at: int = -1) -> None:
        self.actions: list[list[int]] = []
        self._fails_at = fails_at

    def reset(self) -> TimeStep:
        self._fail_if_due()
        return restart(np.zeros(2, np.float32), 2)

    def step(self, actions: np.ndarray) -> TimeStep:
        self.actions.append(actions.tolist())
        self._fail_if_due()
        no = np.zeros(2, bool)
        return transition(np.full(2, len(self.actions), np.float32), np.ones(2), no, no)

    def render(self) -> np.ndarray | None:
        return None

    def close(self) -> None: ...

    def _fail_if_due(self) -> None:
        if len(self.actions) == self._fails_at:
            raise EnvironmentFailure("the wheel came off")


class FakeClient:
    """Answers with ten times the observation; raises `end` instead of its answer number `last`."""

    def __init__(self, last: int = 5, end: Exception | None = None) -> None:
        self.seen: list[TimeStep] = []
        self.closed: list[str] = []
        self._last = last
        self._end = end or RunEnded("total steps reached")

    def act(self, timestep: TimeStep) -> np.ndarray:
        self.seen.append(timestep)
        if len(self.seen) > self._last:
            raise self._end
        return (10 * timestep.observation).astype(np.int64)

    def close(self, error: str = "") -> None:
        self.closed.append(error)


def never() -> bool:
    return False


def test_actions_answer_the_step_that_was_handed_in() -> None:
    environment, client = FakeEnvironment(), FakeClient(last=3)
    run_actor(environment, client, stopped=never)
    assert environment.actions == [[0, 0], [10, 10], [20, 20]]
    assert [timestep.observation[0] for timestep in client.seen] == [0, 1, 2, 3]
    assert [timestep.first.all() for timestep in client.seen] == [True, False, False, False]


@pytest.mark.parametrize("end", [RunEnded("done"), Interrupted("interrupted")])
def test_the_end_of_the_run_and_an_interruption_are_no_errors(end: Exception) -> None:
    client = FakeClient(end=end)
    run_actor(FakeEnvironment(), client, stopped=never)
    assert client.closed == []  # closing is the owner's


def test_stops_between_two_steps() -> None:
    client = FakeClient(last=100)
    run_actor(FakeEnvironment(), client, stopped=lambda: len(client.seen) == 4)
    assert len(client.seen) == 4


@pytest.mark.parametrize("fails_at", [0, 2])
def test_the_learner_hears_why_the_environment_failed(fails_at: int) -> None:
    client = FakeClient(last=100)
    with pytest.raises(EnvironmentFailure, match="the wheel came off"):
        run_actor(FakeEnvironment(fails_at), client, stopped=never)
    assert client.closed == ["the wheel came off"]


def test_what_the_learner_refuses_is_raised() -> None:
    client = FakeClient(end=InvalidRequest("wrong shape"))
    with pytest.raises(InvalidRequest, match="wrong shape"):
        run_actor(FakeEnvironment(), client, stopped=never)
    assert client.closed == []


class FakeRecorder:
    def __init__(self) -> None:
        self.recorded: list[TimeStep] = []

    def record(self, timestep: TimeStep, render: Callable[[], np.ndarray | None]) -> None:
        assert render() is None
        self.recorded.append(timestep)


def test_every_step_is_recorded_before_it_is_answered() -> None:
    recorder, client = FakeRecorder(), FakeClient(last=3)
    run_actor(FakeEnvironment(), client, stopped=never, recorder=recorder)
    assert recorder.recorded == client.seen


def test_real_environments_and_the_loop_fit() -> None:
    client = AlternatingClient(last=50)
    run_actor(make_environment("CartPole-v1", 4, seed=1), client, stopped=never)
    assert any(timestep.first.any() for timestep in client.seen[1:])


class AlternatingClient(FakeClient):
    def act(self, timestep: TimeStep) -> np.ndarray:
        return super().act(timestep)[:, 0] * 0 + len(self.seen) % 2
