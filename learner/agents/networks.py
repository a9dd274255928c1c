"""The network below the heads: stacks images, encodes the observation, remembers with an LSTM.

It runs in two ways that give the same features: `step` for acting, one moment at a time, and
`unroll` for learning, with all T x B rows in one pass through the encoder.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from learner.agent_options import AgentOptions
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
from learner.experience.trajectory import State, Tensor
from protos.errors import ConfigError
from protos.specs import ArraySpec


class Network:
    """Observations to features for one or more heads, with the memory that the options ask for.

    Heads share convolutions (and the LSTM above them), which are what costs most. Under the mlp torso
    each head has a tower of its own: the value's errors grow with the returns, and in a shared tower
    they drown the policy's gradient (CartPole-v1 at a value cost of 0.5 and a learning rate of 1e-3:
    475 within 230,000 steps with two towers (2 seeds), 170 after 500,000 with one (3 seeds)).

    Args:
        leaves: the observation spec.
        options: torso, hidden_sizes, lstm_size and frame_stack matter.
        rng: decides the initial weights.
        heads: how many features to give.

    Raises:
        ConfigError: the options do not fit the observation.
    """

    def __init__(
        self,
        leaves: Sequence[ArraySpec],
        options: AgentOptions,
        rng: np.random.Generator,
        heads: int = 1,
    ) -> None:
        torso = choose_torso(leaves, options)
        self._heads = heads
        self._stacks = {
            i: FrameStack(leaf, options.frame_stack) for i, leaf in enumerate(leaves) if is_image(leaf)
        }
        towers = heads if torso == "mlp" else 1
        self._towers = [Tower(leaves, torso, _of_head(options, torso, i), rng, i) for i in range(towers)]
        self.variables: Variables = {}
        for i, tower in enumerate(self._towers):
            self.variables |= prefixed(f"tower_{i}", tower.variables)
        self.features = self._towers[0].features
        self.head_features = [self._towers[i % towers].features for i in range(heads)]
        """Length of each head's features; `features` is the first's."""

    @property
    def state_specs(self) -> dict[str, Any]:
        """tf.TensorSpec of each entry of the memory, without the batch dimension."""
        stacks = {f"frames_{i}": stack.state_spec for i, stack in self._stacks.items()}
        specs = {name: spec for name, spec in stacks.items() if spec is not None}
        for tower in self._towers:
            specs |= tower.state_specs
        return specs

    def step(self, observation: Sequence[Tensor], state: State) -> tuple[list[Tensor], State]:
        """Features of one step, [B, features] for each head, and the next memory.

        `observation` is [B, *shape] for each leaf; `state` is zeroed already where an episode starts.
        """
        inputs, new_state = list(observation), dict(state)
        for i, stack in self._stacks.items():
            inputs[i] = stack.step(observation[i], state.get(f"frames_{i}"))
            new_state[f"frames_{i}"] = inputs[i].memory()
        outputs = [tower.step(inputs, state) for tower in self._towers]
        return self._answer(outputs, new_state)

    def unroll(
        self, observation: Sequence[Tensor], first: Tensor, initial_state: State
    ) -> tuple[list[Tensor], State]:
        """Features of all steps, [T, B, features] for each head, and the memory after the last.

        In a graph, a memory that nobody uses costs nothing: TensorFlow leaves out what makes it.

        Args:
            observation: [T, B, *shape] for each leaf, T static.
            first: bool [T, B]: the memory starts afresh before this row.
            initial_state: the memory before row 0.
        """
        inputs = [tf.reshape(value, [-1, *value.shape[2:]]) for value in observation]
        new_state = dict(initial_state)
        for i, stack in self._stacks.items():
            inputs[i] = stack.unroll(observation[i], first, initial_state.get(f"frames_{i}"))
            new_state[f"frames_{i}"] = inputs[i].memory()
        outputs = [tower.unroll(inputs, first, initial_state) for tower in self._towers]
        return self._answer(outputs, new_state)

    def _answer(self, outputs: list[tuple[Tensor, State]], state: State) -> tuple[list[Tensor], State]:
        for _, cells in outputs:
            state |= cells
        features = [x for x, _ in outputs]
        shared = len(features) < self._heads
        return features * self._heads if shared else features, {k: state[k] for k in self.state_specs}


class Tower:
    """An encoder and, if asked for, an LSTM above it."""

    def __init__(
        self,
        leaves: Sequence[ArraySpec],
        torso: str,
        options: AgentOptions,
        rng: np.random.Generator,
        number: int,
    ) -> None:
        self._encoder = Encoder(leaves, torso, options, rng)
        self.variables: Variables = prefixed("encoder", self._encoder.variables)
        self.features = self._encoder.features
        self._h, self._c = f"lstm_h_{number}", f"lstm_c_{number}"
        self._lstm: Lstm | None = None
        if options.lstm_size:
            horizon = options.lstm_horizon
            self._lstm = Lstm(self.features, options.lstm_size, rng, horizon=horizon)
            self.variables |= prefixed("lstm", self._lstm.variables)
            self.features = options.lstm_size

    @property
    def state_specs(self) -> dict[str, Any]:
        """tf.TensorSpec of each entry of the memory."""
        if self._lstm is None:
            return {}
        return dict.fromkeys((self._h, self._c), tf.TensorSpec((self._lstm.units,), tf.float32))

    def step(self, inputs: Sequence[Tensor | Frames], state: State) -> tuple[Tensor, State]:
        """Features [B, features], and the next memory."""
        features = self._encoder(inputs)
        if self._lstm is None:
            return features, {}
        h, c = self._lstm.step(features, state[self._h], state[self._c])
        return h, {self._h: h, self._c: c}

    def unroll(
        self, inputs: Sequence[Tensor | Frames], first: Tensor, state: State
    ) -> tuple[Tensor, State]:
        """Features [T, B, features] from inputs of T * B rows, and the memory after the last."""
        features = self._encoder(inputs)
        features = tf.reshape(features, [first.shape[0], -1, self._encoder.features])
        if self._lstm is None:
            return features, {}
        keep = 1.0 - tf.cast(first, tf.float32)
        features, h, c = self._lstm.unroll(features, keep, state[self._h], state[self._c])
        return features, {self._h: h, self._c: c}


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
            self._mlp = Mlp(size, options.hidden_sizes, rng, options.activation)
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
            parts.append(self._mlp(tf.concat(vectors, -1) if len(vectors) > 1 else vectors[0]))
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
        return tf.reshape(self._dense(features), [-1])


def _of_head(options: AgentOptions, torso: str, head: int) -> AgentOptions:
    """The options for one head's tower; behind the first, the policy's, there are values."""
    if not options.value_hidden_sizes:
        return options
    if torso != "mlp":
        raise ConfigError(
            "--value-hidden-sizes needs a tower of the value's own, but convolutions are shared: "
            "leave it out, or say --torso mlp"
        )
    return replace(options, hidden_sizes=options.value_hidden_sizes) if head else options


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
