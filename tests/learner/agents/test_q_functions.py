"""Several MLPs at once, and targets that follow."""

import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

from learner.agents.q_functions import BatchedMlp, Polyak, flat, flat_size
from protos.specs import from_spaces
from tests import reference


def build(seed: int = 0, copies: int = 2) -> BatchedMlp:
    rng = np.random.default_rng(seed)
    return BatchedMlp(3, (5, 4), 2, rng, copies=copies, activation="relu")


def layers(mlp: BatchedMlp) -> list[tuple[np.ndarray, np.ndarray]]:
    values = [variable.numpy() for variable in mlp.variables.values()]
    return list(zip(values[::2], values[1::2], strict=True))


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_equals_the_copies_one_after_the_other(copies: int) -> None:
    mlp = build(copies=copies)
    rng = np.random.default_rng(1)
    for variable in mlp.variables.values():
        variable.assign(rng.normal(size=variable.shape))
    x = rng.normal(size=(7, 3)).astype(np.float32)

    found = mlp(tf.constant(x))

    np.testing.assert_allclose(found, reference.batched_mlp(layers(mlp), x), rtol=1e-4, atol=1e-5)


def test_copies_differ_and_the_seed_decides_them() -> None:
    mlp, same, other = build(), build(), build(seed=1)
    kernels = [each.variables["dense_0/kernel"].numpy() for each in (mlp, same, other)]
    assert not np.array_equal(kernels[0][0], kernels[0][1])
    np.testing.assert_array_equal(kernels[0], kernels[1])
    assert not np.array_equal(kernels[0], kernels[2])


def test_the_activation_is_that_which_is_named() -> None:
    rng = np.random.default_rng(0)
    mlp = BatchedMlp(1, (1,), 1, rng, copies=1, activation="tanh")
    for name, value in {"dense_0/kernel": 1.0, "dense_1/kernel": 1.0}.items():
        mlp.variables[name].assign(np.full((1, 1, 1), value))
    assert float(mlp(tf.constant([[-0.7]]))[0, 0, 0]) == pytest.approx(np.tanh(-0.7), rel=1e-5)


def test_targets_start_equal_and_follow_at_their_rate() -> None:
    source, target = build(), build(seed=1)
    polyak = Polyak(source.variables, target.variables, 0.25)
    before = {name: v.numpy() for name, v in target.variables.items()}
    for name, variable in source.variables.items():
        np.testing.assert_array_equal(variable, before[name])
        variable.assign_add(tf.ones(variable.shape))

    polyak.step()
    polyak.step()

    for name, variable in target.variables.items():
        np.testing.assert_allclose(variable, before[name] + 1 - 0.75**2, rtol=1e-5, atol=1e-6)


def test_flat_puts_all_leaves_into_one_row() -> None:
    space = spaces.Dict(
        {
            "a": spaces.Discrete(3, start=2),
            "b": spaces.Box(-1, 1, (2,), np.float64),
            "c": spaces.Box(0, 255, (1,), np.uint8),
        }
    )
    leaves = from_spaces(space, spaces.Discrete(2)).observation
    observation = [
        tf.constant([4]),
        tf.constant([[0.5, -0.5]], tf.float64),
        tf.constant([[255]], tf.uint8),
    ]

    row = flat(leaves, observation)

    assert (row.dtype, flat_size(leaves)) == (tf.float32, 6)
    np.testing.assert_allclose(row, [[0, 0, 1, 0.5, -0.5, 1]])
