"""Several Q functions at once: the twins whose minimum SAC and its kin learn by."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from learner.agents.layers import RELU_GAIN, Variables, orthogonal, prefixed
from learner.agents.torsos import vector, vector_size
from learner.experience.trajectory import Tensor
from protos.specs import ArraySpec


def flat_size(leaves: Sequence[ArraySpec]) -> int:
    """Length of `flat` for one row."""
    return sum(vector_size(leaf, 1) for leaf in leaves)


def flat(leaves: Sequence[ArraySpec], observation: Sequence[Tensor]) -> Tensor:
    """float32 [N, flat_size] from [N, *shape] of each leaf: categories one-hot, uint8 as 0 to 1."""
    vectors = [vector(leaf, value) for leaf, value in zip(leaves, observation, strict=True)]
    return tf.concat(vectors, -1) if len(vectors) > 1 else vectors[0]


class BatchedMlp:
    """K MLPs of one shape and different weights, as one: each layer is one batched matrix product, and
    each of its variables one for the optimizer and for what follows the weights.

    Args:
        inputs: length of an input.
        sizes: units of the layers below the last.
        outputs: units of the last, which is linear.
        rng: decides the initial weights.
        copies: K.
        activation: between the layers, by Keras's name.
        gain: of the last layer's orthogonal initialization.
    """

    def __init__(
        self,
        inputs: int,
        sizes: Sequence[int],
        outputs: int,
        rng: np.random.Generator,
        *,
        copies: int,
        activation: str,
        gain: float = 1.0,
    ) -> None:
        units = [*sizes, outputs]
        gains = [*[RELU_GAIN] * len(sizes), gain]
        self._layers: list[tuple[Any, Any]] = []
        self.variables: Variables = {}
        for i, (size, layer_gain) in enumerate(zip(units, gains, strict=True)):
            drawn = [orthogonal(rng, layer_gain)((inputs, size)) for _ in range(copies)]
            kernel = keras.Variable(np.stack([np.asarray(x) for x in drawn]), name=f"kernel_{i}")
            bias = keras.Variable(np.zeros((copies, 1, size), np.float32), name=f"bias_{i}")
            self._layers.append((kernel, bias))
            self.variables |= prefixed(f"dense_{i}", {"kernel": kernel, "bias": bias})
            inputs = size
        self._copies = copies
        self._activation = keras.activations.get(activation)

    def __call__(self, x: Tensor) -> Tensor:
        """float32 [K, N, outputs] from x [N, inputs]."""
        x = tf.broadcast_to(x, [self._copies, *tf.unstack(tf.shape(x))])
        *hidden, (kernel, bias) = self._layers
        for hidden_kernel, hidden_bias in hidden:
            x = self._activation(tf.matmul(x, hidden_kernel.value) + hidden_bias.value)
        return tf.matmul(x, kernel.value) + bias.value


class Polyak:
    """Makes target variables follow others: target += rate (source - target) at each step."""

    def __init__(self, source: Variables, target: Variables, rate: float) -> None:
        self._pairs = [(source[name].value, target[name].value) for name in target]
        self._rate = rate
        for trained, follower in self._pairs:
            follower.assign(trained)

    def step(self) -> None:
        for trained, follower in self._pairs:
            follower.assign_add(self._rate * (trained - follower))
