"""Exported policies, loaded in a process that cannot import this project."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from learner.agent_options import AgentOptions
from learner.agents.actor_critic import ActorCriticPolicy
from learner.training.export import export_policy, input_names
from tests.learner.agents import samples

STRANGER = """
import importlib.util, sys
import numpy as np
import tensorflow as tf
assert importlib.util.find_spec("learner") is None, "this process must not know the package"
folder, inputs, out = sys.argv[1:]
model = tf.saved_model.load(folder)
arrays = dict(np.load(inputs))
resets = arrays.pop("reset")
state = {}
if "initial_state" in model.signatures:
    state = model.signatures["initial_state"](batch_size=tf.constant(resets.shape[1]))
actions = []
for t, reset in enumerate(resets):
    observation = {name: tf.constant(value[t]) for name, value in arrays.items()}
    outputs = model.signatures["serving_default"](reset=tf.constant(reset), **observation, **state)
    actions.append(outputs.pop("action").numpy())
    state = outputs
np.save(out, np.stack(actions))
"""

CASES: dict[str, tuple[spaces.Space[Any], spaces.Space[Any], dict[str, Any]]] = {
    "vector": (samples.VECTOR, samples.DISCRETE, {}),
    "memory": (
        spaces.Dict({"camera/0".replace("/", " "): samples.IMAGE, "speed": samples.VECTOR}),
        spaces.Box(-1, 1, (2,), np.float32),
        {"frame_stack": 3, "lstm_size": 4},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_stranger_acts_the_same(case: str, tmp_path: Path) -> None:
    observation, action, options = CASES[case]
    spec = samples.spec(observation, action)
    policy = ActorCriticPolicy(spec, AgentOptions(**options), seed=1)
    rng = np.random.default_rng(0)
    leaves = [samples.draw_leaf(leaf, (4, 3), rng) for leaf in spec.observation]
    reset = rng.random((4, 3)) < 0.4

    export_policy(policy, spec, tmp_path / "model")
    named = dict(zip(input_names(spec.observation), leaves, strict=True))
    np.savez(tmp_path / "inputs.npz", reset=reset, **named)
    found = run_stranger(tmp_path)

    state, expected = samples.zero_state(policy, 3), []
    for t in range(4):
        rows = [leaf[t] for leaf in leaves]
        outputs, state = samples.act(policy, rows, state, reset=reset[t], greedy=True)
        expected.append(outputs.action)
    assert found.dtype == spec.action.dtype
    np.testing.assert_allclose(found, np.stack(expected), rtol=1e-4, atol=1e-5)


def run_stranger(folder: Path) -> np.ndarray:
    # -I hides the current folder; what an editable install adds is taken out as well.
    root = Path(__file__).parents[3]
    clean = (
        "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f)]; "
        f"sys.path[:] = [p for p in sys.path if p not in ('', {str(root)!r})]\n"
    )
    names = [str(folder / name) for name in ("model", "inputs.npz", "actions.npy")]
    command = [sys.executable, "-I", "-c", clean + STRANGER, *names]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return np.asarray(np.load(folder / "actions.npy"))


def test_names_of_inputs() -> None:
    leaf = samples.spec().observation[0]
    observation = spaces.Dict({"a b": samples.VECTOR, "a.b": samples.VECTOR, "c": samples.VECTOR})

    assert input_names((leaf,)) == ["observation"]
    assert input_names(samples.spec(observation).observation) == [
        "observation_a_b",
        "observation_a_b_1",
        "observation_c",
    ]
