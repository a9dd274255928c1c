"""n-step targets against their definition, rlax, and at the ends of episodes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from learner.maths.td_targets import n_step_targets
from tests import reference

RLAX = Path(__file__).parents[2] / "data" / "rlax_q_values.npz"


def draw(seed: int, length: int = 9, batch: int = 5) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shape = (length, batch)
    return {
        "rewards": rng.normal(0, 1, shape).astype(np.float32),
        "discounts": (0.95 * (rng.random(shape) > 0.2)).astype(np.float32),
        "values": rng.normal(0, 2, (length + 1, batch)).astype(np.float32),
        "valid": rng.random(shape) > 0.2,
    }


def run(arrays: dict[str, np.ndarray], n: int) -> np.ndarray:
    tensors: dict[str, Any] = {name: tf.constant(array) for name, array in arrays.items()}
    return np.asarray(n_step_targets(**tensors, n=n))


@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize("n", [1, 2, 5, 9, 30])
def test_equals_the_definition(length: int, n: int) -> None:
    arrays = draw(length, length)
    np.testing.assert_allclose(
        run(arrays, n), reference.n_step_targets(**arrays, n=n), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("n", [1, 3, 5, 20])
def test_equals_rlax(n: int) -> None:
    with np.load(RLAX) as stored:
        data = {key.split("/")[1]: stored[key] for key in stored if key.startswith(f"n_{n}/")}
    arrays = {
        "rewards": data["rewards"],
        "discounts": data["discounts"],
        "values": data["target_q"][..., 0],
        "valid": np.ones(data["rewards"].shape, bool),
    }
    np.testing.assert_allclose(run(arrays, n), data["returns"], rtol=1e-5, atol=1e-5)


def test_a_truncated_episode_bootstraps_from_its_own_last_row() -> None:
    arrays = draw(1, length=5, batch=1)
    arrays["discounts"][:] = 0.9
    arrays["valid"][:, 0] = [True, True, False, True, True]
    found, r = run(arrays, 4), arrays["rewards"][:, 0]
    assert found[0, 0] == pytest.approx(r[0] + 0.9 * r[1] + 0.81 * arrays["values"][2, 0], rel=1e-5)
    assert found[2, 0] == arrays["values"][2, 0]


def test_a_terminated_episode_is_worth_its_rewards() -> None:
    arrays = draw(2, length=5, batch=1)
    arrays["discounts"][:, 0] = [0.9, 0.0, 0.9, 0.9, 0.9]
    arrays["valid"][:, 0] = [True, True, False, True, True]
    r = arrays["rewards"][:, 0]
    assert run(arrays, 4)[0, 0] == pytest.approx(r[0] + 0.9 * r[1], rel=1e-5)


@pytest.mark.parametrize("name", ["rewards", "discounts"])
@pytest.mark.parametrize("poison", [7.0, np.nan, np.inf])
def test_what_stands_at_no_transition_changes_nothing(name: str, poison: float) -> None:
    arrays = draw(3)
    clean = run(arrays, 3)
    arrays[name][~arrays["valid"]] = poison
    np.testing.assert_array_equal(run(arrays, 3), clean)


def test_no_gradient_flows() -> None:
    tensors: dict[str, Any] = {name: tf.constant(array) for name, array in draw(4).items()}
    with tf.GradientTape() as tape:
        tape.watch(tensors["values"])
        total = tf.reduce_sum(n_step_targets(**tensors, n=3))
    assert tape.gradient(total, tensors["values"]) is None


def test_refuses_what_does_not_fit() -> None:
    tensors: dict[str, Any] = {name: tf.constant(array) for name, array in draw(5).items()}
    with pytest.raises(ValueError, match=r"one shape \[T, B\] with a static T, found \(9, 5\)"):
        n_step_targets(**{**tensors, "valid": tensors["valid"][1:]}, n=1)
    with pytest.raises(ValueError, match=r"expected values of \[10, 5\], found \(9, 5\)"):
        n_step_targets(**{**tensors, "values": tensors["values"][1:]}, n=1)
    with pytest.raises(ValueError, match="expected n of at least 1, found 0"):
        n_step_targets(**tensors, n=0)
