"""What `python -m actor.measuring` prints."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import json_format
from gymnasium.spaces import Box, Discrete

from actor.measuring import (
    MeasuringOptions,
    Stepping,
    measure,
    random_actions,
    stepping_cost,
)
from actor.timestep import TimeStep
from protos import inference_pb2 as pb
from protos import specs
from protos.errors import ConfigError


class Half:
    """Every other turn is a reset, which is no step. Says how often it was stepped."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.turns = 0
        self.actions: list[np.ndarray] = []

    def reset(self) -> TimeStep:
        return self._shown(np.ones(self.num_envs, bool))

    def step(self, actions: np.ndarray) -> TimeStep:
        self.turns += 1
        self.actions.append(actions)
        return self._shown(np.full(self.num_envs, self.turns % 2 == 0))

    def _shown(self, first: np.ndarray) -> TimeStep:
        zeros = np.zeros(self.num_envs, np.float32)
        return TimeStep(zeros, zeros, first, first, first)


def test_resets_are_work_but_no_steps(cartpole_spec: specs.EnvironmentSpec) -> None:
    environment = Half(4)
    found: Stepping = stepping_cost(environment, cartpole_spec, 0.01)  # type: ignore[arg-type]  # a fake
    # Two turns make four steps.
    assert found.seconds_per_step * 2 == pytest.approx(found.seconds_per_turn, rel=0.2)
    assert environment.turns > 10
    assert {action.shape for action in environment.actions} == {(4,)}


@pytest.fixture
def cartpole_spec() -> specs.EnvironmentSpec:
    found = next(measure(MeasuringOptions(env="CartPole-v1", sizes=(1,), seconds=0.001)))
    return specs.from_proto(json_format.ParseDict(found["spec"], pb.EnvironmentSpec()))


def test_each_size_is_measured_after_the_specs() -> None:
    options = MeasuringOptions(env="CartPole-v1", sizes=(2, 5), seconds=0.001)
    spec, few, many = measure(options)
    assert spec["spec"]["observation"][0]["shape"] == [4]
    assert [few["environments"], many["environments"]] == [2, 5]
    assert few["seconds_per_turn"] > few["seconds_per_step"] > 0
    assert few["seconds_per_message"] is None


NOISY = """
import os
import gymnasium

def make():
    print("hello from Python")
    os.write(1, b"hello from C")
    return gymnasium.make("CartPole-v1")
"""


def test_standard_output_has_the_results_alone(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    command = [sys.executable, "-m", "actor.measuring", f"--env={tmp_path}/noisy.py:make"]
    done = subprocess.run(
        [*command, "--seconds=0.001", "--sizes=[1]"], capture_output=True, text=True, check=True
    )
    spec, costs = map(json.loads, done.stdout.splitlines())
    assert set(spec) == {"spec"}
    assert costs["environments"] == 1
    assert "hello from C" in done.stderr


def test_random_actions_are_legal() -> None:
    rng = np.random.default_rng(0)
    discrete = specs.from_spaces(Box(0, 1, (1,)), Discrete(3, start=2)).action
    assert set(random_actions(discrete, 200, rng).tolist()) == {2, 3, 4}
    box = specs.from_spaces(Box(0, 1, (1,)), Box(-np.inf, np.inf, (2,), np.float32)).action
    actions = random_actions(box, 200, rng)
    assert (actions.shape, actions.dtype) == ((200, 2), np.float32)
    assert np.isfinite(actions).all()


def test_a_missing_environment_is_one_line() -> None:
    command = [sys.executable, "-m", "actor.measuring", "--env=NoSuch-v0"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("actor.measuring: error: environment NoSuch-v0")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"env": None}, "--env is required: what to step"),
        ({"sizes": (0,)}, "--sizes 0: expected at least 1"),
    ],
)
def test_misuse_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MeasuringOptions(**{"env": "x", **change})  # type: ignore[arg-type]  # of any type
