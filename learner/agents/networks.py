"""The network below the heads: stacks images, encodes the observation, remembers with an LSTM.

It runs in two ways that give the same features: `step` for acting, one moment at a time, and
`unroll` for learning, with all T x B rows in one pass through the encoder.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from learner.agents.distributions import ActionDistribution
from learner.agents.layers import Dense, Lstm, Variables, prefixed
from learner.agents.memory import Frames, FrameStack
from learner.agents.torsos import (
    SHALLOW_MINIMUM,
    Deep,
    ImageTorso,
    Mlp,
    Shallow,
    image_size,
    is_image,
    vector,
    vector_size,
)
from learner.config import AgentOptions
from learner.experience.trajectory import State, Tensor
from protos.errors import ConfigError
from protos.specs import ArraySpec


class Network:
    """Observations to features, with the memory that the options ask for.

    Args:
        leaves: the observation spec.
        options: torso, hidden_sizes, lstm_size and frame_stack matter.
        rng: decides the initial weights.

    Raises:
        ConfigError: the options do not fit the observation.
    """

    def __init__(
        self, leaves: Sequence[ArraySpec], options: AgentOptions, rng: np.random.Generator
    ) -> None:
        torso = choose_torso(leaves, options)
        self._leaves = leaves
        self._stacks = {
            i: FrameStack(leaf, options.frame_stack) for i, leaf in enumerate(leaves) if is_image(leaf)
        }
        self._encoder = Encoder(leaves, torso, options, rng)
        self.variables: Variables = prefixed("encoder", self._encoder.variables)
        self.features = self._encoder.features
        self._lstm: Lstm | None = None
        if options.lstm_size:
            self._lstm = Lstm(self.features, options.lstm_size, rng)
            self.variables |= prefixed("lstm", self._lstm.variables)
            self.features = options.lstm_size

    @property
    def state_specs(self) -> dict[str, Any]:
        """tf.TensorSpec of each entry of the memory, without the batch dimension."""
        specs = {f"frames_{i}": stack.state_spec for i, stack in self._stacks.items()}
        if self._lstm is not None:
            cells = tf.TensorSpec((self._lstm.units,), tf.float32)
            specs |= {"lstm_h": cells, "lstm_c": cells}
        return {name: spec for name, spec in specs.items() if spec is not None}

    def step(self, observation: Sequence[Tensor], state: State) -> tuple[Tensor, State]:
        """Features [B, features] of one step, and the next memory.

        `observation` is [B, *shape] for each leaf; `state` is zeroed already where an episode starts.
        """
        inputs, new_state = [], {}
        for i, value in enumerate(observation):
            if i in self._stacks:
                frames, past = self._stacks[i].step(value, state.get(f"frames_{i}"))
                inputs.append(frames)
                new_state[f"frames_{i}"] = past
            else:
                inputs.append(value)
        features = self._encoder(inputs)
        if self._lstm is not None:
            h, c = self._lstm.step(features, state["lstm_h"], state["lstm_c"])
            features, new_state["lstm_h"], new_state["lstm_c"] = h, h, c
        return features, self._known(new_state)

    def unroll(
        self, observation: Sequence[Tensor], first: Tensor, initial_state: State
    ) -> tuple[Tensor, State]:
        """Features [T, B, features] of all steps, and the memory after the last.

        Args:
            observation: [T, B, *shape] for each leaf, T static.
            first: bool [T, B]: the memory starts afresh before this row.
            initial_state: the memory before row 0.
        """
        inputs, new_state = [], {}
        for i, value in enumerate(observation):
            if i in self._stacks:
                frames, past = self._stacks[i].unroll(value, first, initial_state.get(f"frames_{i}"))
                inputs.append(frames)
                new_state[f"frames_{i}"] = past
            else:
                inputs.append(tf.reshape(value, [-1, *value.shape[2:]]))
        features = self._encoder(inputs)
        features = tf.reshape(features, [first.shape[0], -1, self._encoder.features])
        if self._lstm is not None:
            keep = 1.0 - tf.cast(first, tf.float32)
            h, c = initial_state["lstm_h"], initial_state["lstm_c"]
            features, h, c = self._lstm.unroll(features, keep, h, c)
            new_state |= {"lstm_h": h, "lstm_c": c}
        return features, self._known(new_state)

    def _known(self, state: dict[str, Any]) -> State:
        return {name: state[name] for name in self.state_specs}


class Encoder:
    """Images through convolutions, everything else (all of it, for the mlp torso) through the MLP.

    The features are those of each image, then those of the MLP.
    """

    def __init__(
        self,
        leaves: Sequence[ArraySpec],
        torso: str,
        options: AgentOptions,
        rng: np.random.Generator,
    ) -> None:
        self._leaves = leaves
        self._images: dict[int, ImageTorso] = {}
        self.variables: Variables = {}
        depth = options.frame_stack
        if torso != "mlp":
            build = Shallow if torso == "shallow" else Deep
            images = [i for i, leaf in enumerate(leaves) if is_image(leaf)]
            self._images = {i: build(leaves[i].shape, depth, rng) for i in images}
        for i, image in self._images.items():
            self.variables |= prefixed(f"image_{i}", image.variables)
        self._vectors = [i for i in range(len(leaves)) if i not in self._images]
        self._mlp: Mlp | None = None
        if self._vectors:
            size = sum(vector_size(leaves[i], depth) for i in self._vectors)
            self._mlp = Mlp(size, options.hidden_sizes, rng)
            self.variables |= prefixed("mlp", self._mlp.variables)
        parts: list[ImageTorso | Mlp] = list(self._images.values())
        if self._mlp is not None:
            parts.append(self._mlp)
        self.features = sum(part.features for part in parts)

    def __call__(self, inputs: Sequence[Tensor | Frames]) -> Tensor:
        """float32 [N, features] from one entry for each leaf: Frames of images, else [N, *shape]."""
        parts = [torso(inputs[i]) for i, torso in self._images.items()]
        if self._mlp is not None:
            vectors = [vector(self._leaves[i], inputs[i]) for i in self._vectors]
            parts.append(self._mlp(tf.concat(vectors, -1)))
        return tf.concat(parts, -1) if len(parts) > 1 else parts[0]


class PolicyHead:
    """Features to the parameters of an action distribution."""

    def __init__(
        self, features: int, distribution: ActionDistribution, rng: np.random.Generator
    ) -> None:
        # A small gain: the first policy is nearly the same everywhere, and explores.
        self._dense = Dense(features, distribution.num_outputs, rng, gain=0.01)
        self.variables: Variables = dict(self._dense.variables)
        self._free: Any = None
        if distribution.num_free:
            self._free = keras.Variable(np.zeros(distribution.num_free, np.float32), name="free")
            self.variables["free"] = self._free

    def __call__(self, features: Tensor) -> Tensor:
        """[N, parameters] from [N, features]."""
        outputs = self._dense(features)
        if self._free is None:
            return outputs
        free = tf.broadcast_to(self._free.value, [tf.shape(outputs)[0], self._free.shape[0]])
        return tf.concat([outputs, free], -1)


class ValueHead:
    """Features to V(x)."""

    def __init__(self, features: int, rng: np.random.Generator) -> None:
        self._dense = Dense(features, 1, rng, gain=1.0)
        self.variables: Variables = dict(self._dense.variables)

    def __call__(self, features: Tensor) -> Tensor:
        """[N] from [N, features]."""
        return self._dense(features)[:, 0]


def choose_torso(leaves: Sequence[ArraySpec], options: AgentOptions) -> str:
    """The torso that "auto" stands for here, or the one that the options name.

    Raises:
        ConfigError: the observation has no image for it, or one that is too small.
    """
    found = f"the observation is ({'; '.join(map(str, leaves))})"
    images = [leaf for leaf in leaves if is_image(leaf)]
    torso = options.torso
    if torso == "auto":
        torso = "shallow" if images else "mlp"
    if options.frame_stack > 1 and not images:
        raise ConfigError(
            f"--frame-stack {options.frame_stack} stacks images (uint8 of rank 3), but {found}: "
            "say --frame-stack 1, or --lstm-size for a memory"
        )
    if torso != "mlp" and not images:
        raise ConfigError(
            f"--torso {torso} needs an image (uint8 of rank 3), but {found}: say --torso mlp"
        )
    if torso == "shallow":
        for leaf in images:
            if min(image_size(leaf.shape)[:2]) < SHALLOW_MINIMUM:
                raise ConfigError(
                    f"--torso shallow needs images of at least {SHALLOW_MINIMUM} x "
                    f"{SHALLOW_MINIMUM} pixels, but {found}: say --torso deep or --torso mlp"
                )
    return torso
