"""`InferenceClient` against a learner in this process: steps, refusals, the end."""

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from actor import InferenceClient, TimeStep, restart, transition
from learner.serving.batcher import Request
from protos import inference_pb2 as pb
from protos.errors import InvalidRequest, RunEnded, UnsupportedSpace
from protos.specs import from_spaces
from tests.fakes import ACTIONS, OBSERVATIONS, FakeLearner, LogLines, answer, observation

NO = np.zeros(2, bool)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"unix:{tmp_path}/s"


@pytest.fixture
def learner(address: str) -> Iterator[FakeLearner]:
    # Leases that outlive the test: what is dropped was closed.
    with FakeLearner(address, lease_seconds=3600) as fake:
        yield fake


@pytest.fixture(autouse=True)
def _nothing_left_open() -> Iterator[None]:
    """No thread of a client's outlives it; what else it forgot shows as a warning, which is an error."""
    yield
    gc.collect()
    assert "client" not in [thread.name for thread in threading.enumerate()]


def connect(address: str, **options: Any) -> InferenceClient:
    return InferenceClient(address, OBSERVATIONS, ACTIONS, **options)


def later(*numbers: float, reward: float = 0.5) -> TimeStep:
    """A step in the middle of an episode."""
    rows = len(numbers)
    no = np.zeros(rows, bool)
    return transition(observation(*numbers), np.full(rows, reward), no, no)


def kept(learner: FakeLearner) -> list[Request]:
    """The requests from now on, answered all the same. Their arrays are copied: views end."""
    requests: list[Request] = []
    learner.on_step = lambda request: (requests.append(request), answer(request))
    return requests


# Steps ------------------------------------------------------------------------------------------


def test_a_single_environment_has_no_leading_axis(learner: FakeLearner) -> None:
    requests = kept(learner)
    with connect(learner.address) as client:
        action = client.act(restart(np.float32([10, 0])))
        assert (action.shape, action.dtype, int(action)) == ((), np.int64, 10)
        assert client.act(transition(np.float32([20, 0]), 0.5, True, False)) == 20
        assert client.act(restart(np.float32([30, 0]))) == 30
        assert client.policy_version == 7
    assert [request.flags.tolist()[0] & 7 for request in requests] == [pb.FIRST, pb.TERMINATED, pb.FIRST]
    assert [request.reward.tolist() for request in requests] == [[0], [0.5], [0]]
    assert learner.next_dropped() == [0]


def test_many_environments_step_together(learner: FakeLearner) -> None:
    requests = kept(learner)
    with connect(learner.address, num_environments=3) as client:
        assert client.act(restart(observation(1, 2, 3), 3)).tolist() == [1, 2, 3]
        step = transition(observation(4, 5, 6), [1, 2, 3], [True, False, False], [False, True, False])
        assert client.act(step).tolist() == [4, 5, 6]
    assert requests[1].flags.tolist() == [pb.TERMINATED, pb.TRUNCATED, 0]
    assert requests[1].reward.tolist() == [1, 2, 3]


def test_any_subset_of_environments_may_step(learner: FakeLearner) -> None:
    requests = kept(learner)
    with connect(learner.address, num_environments=4) as client:
        client.act(restart(observation(1, 2, 3, 4), 4))
        assert client.act(later(7, 5), environments=[3, 1]).tolist() == [7, 5]
        assert client.act(later(6), environments=np.array([0])).tolist() == [6]
    assert [request.slots.tolist() for request in requests] == [[0, 1, 2, 3], [3, 1], [0]]


def test_structured_observations_travel_leaf_by_leaf(address: str) -> None:
    space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (2, 2), np.uint8),
            "body": spaces.Tuple([spaces.Box(-1, 1, (2,), np.float64), spaces.Discrete(3)]),
        }
    )
    requests: list[Request] = []

    def act(request: Request) -> None:
        requests.append(request)
        request.reply(np.full((2, 1), 0.25, np.float32), 1)

    action_space = spaces.Box(-1, 1, (1,))
    shown = {
        "camera": np.arange(8, dtype=np.uint8).reshape(2, 2, 2),
        "body": (np.float32([[0.5, 0.25], [-0.5, 1]]), np.array([2, 0])),
    }
    with FakeLearner(address, spec=from_spaces(space, action_space)) as learner:
        learner.on_step = act
        with InferenceClient(address, space, action_space, num_environments=2) as client:
            actions = client.act(restart(shown, 2))
    assert (actions.shape, actions.dtype) == ((2, 1), np.float32)
    leaves = [(leaf.dtype, leaf.tolist()) for leaf in requests[0].observation]
    by_name = dict(zip([leaf.name for leaf in client.spec.observation], leaves, strict=True))
    assert by_name == {
        "camera": (np.uint8, shown["camera"].tolist()),
        "body/0": (np.float64, [[0.5, 0.25], [-0.5, 1]]),
        "body/1": (np.int64, [2, 0]),
    }


def test_actions_belong_to_the_caller(learner: FakeLearner) -> None:
    with connect(learner.address, num_environments=2) as client:
        actions = client.act(restart(observation(1, 2), 2))
        actions += 1  # Some environments scale in place.
        assert actions.tolist() == [2, 3]


def test_evaluation_is_a_mode(address: str) -> None:
    with FakeLearner(address, modes=(pb.EVALUATE,)):
        with connect(address, mode="evaluate") as client:
            assert client.act(restart(np.float32([5, 0]))) == 5
        with pytest.raises(InvalidRequest, match=r"expected EVALUATE \(what this .*found TRAIN"):
            connect(address).__enter__()


def test_the_learner_knows_the_client_by_name(learner: FakeLearner) -> None:
    with LogLines("learner.serving") as log:
        with connect(learner.address, name="left arm"):
            pass
        with connect(learner.address):
            pass
    assert [line for line in log.lines(0) if "brings" in line] == [
        "left arm: brings 1 environment",
        f"{os.uname().nodename}:{os.getpid()}: brings 1 environment",
    ]


# Refusals ---------------------------------------------------------------------------------------

WRONG_STEPS: dict[str, tuple[TimeStep, str]] = {
    "shape": (
        restart(np.zeros((2, 3), np.float32), 2),
        "observation '': expected float32[2, 2], found float32[2, 3]",
    ),
    "rows": (
        restart(observation(1), 2),
        "observation '': expected float32[2, 2], found float32[1, 2]",
    ),
    "dtype": (
        restart(np.zeros((2, 2), np.complex64), 2),
        "observation '': expected float32[2, 2], found complex64[2, 2]",
    ),
    "reward": (
        transition(observation(1, 2), [1, 2, 3], NO, NO),
        "reward: expected shape [2], found [3]",
    ),
    "flags": (
        transition(observation(1, 2), [1, 2], [False], [False]),
        "terminated: expected shape [2], found [1]",
    ),
    "a scalar for two": (
        transition(observation(1, 2), [1, 2], NO, False),
        "truncated: expected shape [2], found []",
    ),
}


@pytest.mark.parametrize(("step", "message"), WRONG_STEPS.values(), ids=WRONG_STEPS.keys())
def test_wrong_steps_are_refused_before_they_are_sent(
    learner: FakeLearner, step: TimeStep, message: str
) -> None:
    requests = kept(learner)
    with connect(learner.address, num_environments=2) as client:
        with pytest.raises(InvalidRequest) as refusal:
            client.act(step)
        assert str(refusal.value) == message
        assert requests == []
        assert client.act(restart(observation(1, 2), 2)).tolist() == [1, 2], "nothing is lost"


@pytest.mark.parametrize(
    "environments", [[], [0, 1, 2], [[0, 1]], [True, False], [0.5, 1], [0, 2], [-1]]
)
def test_wrong_lists_of_environments_are_refused_before_they_are_sent(
    learner: FakeLearner, environments: Any
) -> None:
    requests = kept(learner)
    with connect(learner.address, num_environments=2) as client:
        with pytest.raises(
            InvalidRequest, match=r"^environments: expected 1 to 2 integers of 0 to 1, found "
        ):
            client.act(restart(observation(1, 2), 2), environments)
        assert requests == []


def test_what_the_learner_refuses_is_raised(learner: FakeLearner) -> None:
    with connect(learner.address) as client:
        client.act(restart(np.float32([1, 0])))
        with pytest.raises(InvalidRequest, match="found FIRST in the middle of an episode"):
            client.act(restart(np.float32([1, 0])))
    assert learner.next_dropped() == [0]


def test_a_refused_opening_is_raised(learner: FakeLearner) -> None:
    with pytest.raises(InvalidRequest, match="num_environments: expected at most 6 in a session"):
        connect(learner.address, num_environments=7).__enter__()


def test_spaces_that_the_wire_cannot_carry_are_refused() -> None:
    with pytest.raises(UnsupportedSpace):
        InferenceClient("unix:x", spaces.Text(3), ACTIONS)


# The end ----------------------------------------------------------------------------------------


def test_run_ended_is_raised(learner: FakeLearner) -> None:
    with connect(learner.address) as client:
        client.act(restart(np.float32([1, 0])))
        learner.server.end_streams(RunEnded("all done"))
        with pytest.raises(RunEnded, match=r"^all done$"):
            client.act(transition(np.float32([1, 0]), 0, False, False))


def test_run_ended_reaches_a_client_that_waits(learner: FakeLearner) -> None:
    learner.on_step = learner.requests.put

    def end() -> None:
        learner.next_request()
        learner.server.end_streams(RunEnded("all done"))

    thread = threading.Thread(target=end)
    thread.start()
    with connect(learner.address) as client, pytest.raises(RunEnded, match=r"^all done$"):
        client.act(restart(np.float32([1, 0])))
    thread.join()


def test_a_failed_environment_reaches_the_learners_log(learner: FakeLearner) -> None:
    with LogLines("learner.serving") as log:
        with pytest.raises(ValueError, match="boom"), connect(learner.address, name="arm"):
            raise ValueError("boom")
        client = connect(learner.address, name="leg")
        client.__enter__()
        client.close(error="the knee broke")
    assert log.lines() == [
        "arm: its environment failed: ValueError: boom",
        "leg: its environment failed: the knee broke",
    ]
    assert learner.next_dropped() == learner.next_dropped() == [0]


def test_words_that_are_no_utf8_reach_the_learner_too(learner: FakeLearner) -> None:
    with LogLines("learner.serving") as log:
        client = connect(learner.address, name="caf\udce9")
        client.__enter__()
        client.close(error="no file caf\udce9.rom")
    assert log.lines() == ["caf\\udce9: its environment failed: no file caf\\udce9.rom"]


def test_close_may_be_called_often_and_before_anything(learner: FakeLearner) -> None:
    client = connect(learner.address)
    client.close()
    client.close()
    client.interrupt()
    with pytest.raises(RuntimeError, match=r"^the client is closed$"):
        client.act(restart(np.float32([1, 0])))
    assert learner.server.statistics()["sessions"] == 0


def test_act_opens_the_session_where_nothing_else_did(learner: FakeLearner) -> None:
    client = connect(learner.address)
    assert client.act(restart(np.float32([1, 0]))) == 1
    client.close()
    assert learner.next_dropped() == [0]
