"""Convolutions against the obvious ones: of images stacked along their channels, pixel by pixel."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from learner.agents.layers import Conv, Dense
from learner.agents.memory import Frames, FrameStack
from learner.agents.torsos import Deep, Shallow, channels_first, vector
from protos.errors import ConfigError
from protos.specs import ArraySpec
from tests import reference

SHAPES = {
    "atari": ((84, 84, 1), 4),
    "colours": ((48, 36, 3), 4),
    "no multiple of the stride": ((26, 23, 2), 3),
    "channels first": ((3, 22, 25), 2),
    "the least": ((20, 20, 1), 4),
    "one image": ((24, 20, 3), 1),
}


@pytest.mark.parametrize(
    ("size", "stride", "padding"), [(8, 4, "valid"), (4, 2, "valid"), (3, 1, "valid"), (3, 1, "same")]
)
@pytest.mark.parametrize(("height", "width"), [(16, 12), (17, 15), (11, 14)])
def test_a_convolution_equals_the_loop(
    size: int, stride: int, padding: str, height: int, width: int
) -> None:
    rng = np.random.default_rng(0)
    conv = Conv(3, 5, rng, size=size, stride=stride, padding=padding)
    conv.variables["bias"].assign(rng.normal(size=5))
    x = rng.normal(size=(2, height, width, 3)).astype(np.float32)

    found = conv(tf.constant(x))

    if padding == "same":
        x = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])
    kernel, bias = (conv.variables[name].numpy() for name in ("kernel", "bias"))
    truth = reference.convolve(x, kernel, stride) + bias
    np.testing.assert_allclose(found, truth, rtol=1e-4, atol=1e-5)


def test_an_activation_follows_the_bias() -> None:
    rng = np.random.default_rng(0)
    plain, relu = (
        Conv(2, 4, np.random.default_rng(1), size=3, activation=activation)
        for activation in (None, "relu")
    )
    x = tf.constant(rng.normal(size=(2, 6, 6, 2)), tf.float32)
    for conv in (plain, relu):
        conv.variables["bias"].assign([-1, 1, 0, 2])

    np.testing.assert_allclose(relu(x), np.maximum(plain(x), 0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("size", "stride", "padding"), [(8, 3, "valid"), (4, 2, "same")])
def test_refuses_strides_that_cut_no_whole_columns(size: int, stride: int, padding: str) -> None:
    with pytest.raises(ValueError, match=f"found size {size}, stride {stride}, padding '{padding}'"):
        Conv(1, 1, np.random.default_rng(0), size=size, stride=stride, padding=padding)


def interleaved(stacks: np.ndarray) -> np.ndarray:
    """[N, depth, *shape] as [N, H, W, depth * C]."""
    if channels_first(stacks.shape[2:]):
        stacks = stacks.transpose(0, 1, 3, 4, 2)
    return np.concatenate([stacks[:, i] for i in range(stacks.shape[1])], -1)


def plain_shallow(variables: dict[str, Any], x: Any) -> Any:
    """The shallow torso of float images [N, H, W, channels]."""
    x = tf.nn.conv2d(x, variables["conv_0/kernel"], 4, "VALID") + variables["conv_0/bias"]
    x = tf.nn.conv2d(tf.nn.relu(x), variables["conv_1/kernel"], 2, "VALID") + variables["conv_1/bias"]
    x = tf.reshape(tf.nn.relu(x), [len(x), -1])
    return tf.nn.relu(x @ variables["dense/kernel"] + variables["dense/bias"])


def unroll(
    shape: tuple[int, ...], depth: int, starts: float, length: int = 6, batch: int = 3
) -> tuple[Frames, np.ndarray]:
    """Frames of an unroll, and its true stacks uint8 [T * B, depth, *shape]."""
    rng = np.random.default_rng(2)
    images = rng.integers(0, 256, (length, batch, *shape), np.uint8)
    first = rng.random((length, batch)) < starts
    past = rng.integers(0, 256, (batch, depth - 1, *shape), np.uint8)
    past[first[0]] = 0
    stack = FrameStack(ArraySpec("", shape, np.dtype(np.uint8)), depth)
    memory = tf.constant(past) if depth > 1 else None
    frames = stack.unroll(tf.constant(images), tf.constant(first), memory)
    return frames, reference.stack_frames(images, first, past).reshape(-1, depth, *shape)


def with_gradients(torso: Any, features: Any, weights: Any) -> tuple[Any, list[Any]]:
    """Features, and the gradients of their weighted sum with respect to the torso's variables."""
    variables = [variable.value for variable in torso.variables.values()]
    with tf.GradientTape() as tape:
        x = features()
        total = tf.reduce_sum(x * weights)
    return x, tape.gradient(total, variables)


@pytest.mark.parametrize("starts", [0.0, 0.3])
@pytest.mark.parametrize("case", SHAPES)
def test_the_shallow_torso_equals_the_plain_one(case: str, starts: float) -> None:
    shape, depth = SHAPES[case]
    rng = np.random.default_rng(1)
    torso = Shallow(shape, depth, rng)
    for name, variable in torso.variables.items():
        if name.endswith("bias"):
            variable.assign(rng.normal(size=variable.shape))
    frames, stacks = unroll(shape, depth, starts)
    weights = rng.normal(size=(len(stacks), 256)).astype(np.float32)

    graph = tf.function(lambda frames: with_gradients(torso, lambda: torso(frames), weights))
    found, gradients = graph(frames)

    x = tf.constant(interleaved(stacks) / np.float32(255))
    plain = {name: variable.value for name, variable in torso.variables.items()}
    truth, expected = with_gradients(torso, lambda: plain_shallow(plain, x), weights)
    np.testing.assert_allclose(found, truth, rtol=1e-4, atol=1e-5)
    for name, one, other in zip(torso.variables, gradients, expected, strict=True):
        # Not tighter: rounding may put a ReLU's input to the other side of 0, and its gradient with it.
        tolerance = 3e-3 * np.abs(other).max()
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance, err_msg=name)


def test_one_trace_serves_unrolls_with_starts_and_without() -> None:
    torso = Shallow((20, 20, 1), 3, np.random.default_rng(0))
    traces = []

    def features(frames: Frames) -> Any:
        traces.append(frames)
        return torso(frames)

    graph = tf.function(features)
    for starts in (0.0, 0.3, 0.0):
        frames, _ = unroll((20, 20, 1), 3, starts)
        graph(frames)

    assert len(traces) == 1


@pytest.mark.parametrize("shape", [(9, 7, 2), (2, 9, 7)])
def test_the_deep_torso_sees_the_stack(shape: tuple[int, ...]) -> None:
    frames, stacks = unroll(shape, 3, 0.3)
    torso = Deep(shape, 3, np.random.default_rng(0))
    plain = Deep((9, 7, 6), 1, np.random.default_rng(0))  # The same weights, of one image.

    found = torso(frames)

    images = tf.constant(interleaved(stacks)[:, None])
    np.testing.assert_allclose(found, plain(Frames(images)), rtol=1e-5)


def test_a_dense_layer_that_cannot_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large images end in one of gigabytes, which the kernel would answer by ending the process."""
    monkeypatch.setattr("learner.memory_limit.memory_limit", lambda: 12_000)
    Dense(100, 10, np.random.default_rng(0))
    with pytest.raises(ConfigError, match="a dense layer of 100 inputs and 11 units: expected at least"):
        Dense(100, 11, np.random.default_rng(0))


def test_a_stack_as_a_vector() -> None:
    leaf = ArraySpec("", (4, 5, 2), np.dtype(np.uint8))
    frames, stacks = unroll(leaf.shape, 3, 0.3)

    found = vector(leaf, frames)

    np.testing.assert_allclose(found, interleaved(stacks).reshape(len(stacks), -1) / 255.0, rtol=1e-6)
