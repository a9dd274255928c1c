"""A policy as a SavedModel, which any TensorFlow loads without this package.

    model = tf.saved_model.load(folder)
    state = model.signatures["initial_state"](batch_size=tf.constant(2))
    outputs = model.signatures["serving_default"](observation=..., reset=..., **state)

`serving_default` chooses greedy actions for any number of environments. Inputs by name:

- `observation` if that is one array, else `observation_PATH` for each leaf: [B, *shape] of the
  spec's dtype. Characters of the path other than letters, digits and _ become _.
- `reset`: bool [B], True at an episode's first step: the memory starts afresh.
- `state_NAME` for each entry of the policy's memory: [B, ...].

Outputs: `action` [B, *shape], and each `state_NAME` to hand in at the next step. `initial_state`
takes `batch_size`, an int32 scalar, and gives every `state_NAME`; a policy without memory has no such
signature.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from learner.agents.agent import Policy
from learner.experience.trajectory import ActInputs, Tensor
from protos.specs import ArraySpec, EnvironmentSpec


def export_policy(policy: Policy, spec: EnvironmentSpec, out: Path) -> None:
    """Write `policy`, with its present weights, as a SavedModel to the folder `out`."""
    module = tf.Module()
    module.weights = policy.variables
    signatures = {"serving_default": _serving(policy, spec)}
    if policy.state_specs:
        signatures["initial_state"] = _initial_state(policy)
    tf.saved_model.save(module, str(out), signatures=signatures)


def input_names(leaves: tuple[ArraySpec, ...]) -> list[str]:
    """The input's name for each leaf of the observation."""
    names = []
    for i, leaf in enumerate(leaves):
        name = re.sub(r"\W", "_", f"observation_{leaf.name}", flags=re.ASCII).rstrip("_")
        # Two paths may differ only in characters that a name cannot have.
        names.append(name if name not in names else f"{name}_{i}")
    return names


def _serving(policy: Policy, spec: EnvironmentSpec) -> Any:
    names = input_names(spec.observation)

    def serve(**inputs: Tensor) -> Mapping[str, Tensor]:
        reset = inputs["reset"]
        act_inputs = ActInputs(
            observation=tuple(inputs[name] for name in names),
            reward=tf.zeros_like(reset, tf.float32),
            reset=reset,
            slot=tf.zeros_like(reset, tf.int32),
        )
        state = {name: _keep(inputs[f"state_{name}"], ~reset) for name in policy.state_specs}
        outputs, state = policy.act(act_inputs, state, seed=tf.zeros(2, tf.int32), greedy=True)
        return {"action": outputs.action, **_prefixed(state)}

    specs = {
        name: tf.TensorSpec((None, *leaf.shape), leaf.dtype, name)
        for name, leaf in zip(names, spec.observation, strict=True)
    }
    specs["reset"] = tf.TensorSpec((None,), tf.bool, "reset")
    for name, entry in policy.state_specs.items():
        specs[f"state_{name}"] = tf.TensorSpec((None, *entry.shape), entry.dtype, f"state_{name}")
    return tf.function(serve, autograph=False).get_concrete_function(**specs)


def _initial_state(policy: Policy) -> Any:
    def zeros(batch_size: Tensor) -> Mapping[str, Tensor]:
        specs = policy.state_specs.items()
        return _prefixed(
            {name: tf.zeros([batch_size, *entry.shape], entry.dtype) for name, entry in specs}
        )

    batch_size = tf.TensorSpec((), tf.int32, "batch_size")
    return tf.function(zeros, autograph=False).get_concrete_function(batch_size)


def _keep(x: Tensor, mask: Tensor) -> Tensor:
    """x [B, ...] where `mask` [B], and 0 elsewhere."""
    mask = tf.reshape(mask, [-1] + [1] * (len(x.shape) - 1))
    return tf.where(mask, x, tf.zeros_like(x))


def _prefixed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"state_{name}": value for name, value in state.items()}
