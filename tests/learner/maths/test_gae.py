"""GAE against its definition, against rlax, and at the ends of episodes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from learner.maths.gae import Estimates, gae
from tests import reference

RLAX = Path(__file__).parents[2] / "data" / "rlax_values.npz"


def draw(seed: int, length: int = 13, batch: int = 5) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shape = (length, batch)
    arrays = {
        "discounts": 0.95 * (rng.random(shape) > 0.2),
        "rewards": rng.normal(0, 1, shape),
        "values": rng.normal(0, 2, shape),
        "bootstrap_value": rng.normal(0, 2, batch),
    }
    valid = rng.random(shape) > 0.2
    return {"valid": valid, **{k: v.astype(np.float32) for k, v in arrays.items()}}


def run(arrays: dict[str, np.ndarray], lambda_: float = 0.9) -> Estimates:
    tensors: dict[str, Any] = {name: tf.constant(array) for name, array in arrays.items()}
    result = gae(**tensors, lambda_=lambda_)
    return Estimates(result.targets.numpy(), result.advantages.numpy())


@pytest.mark.parametrize("length", [1, 2, 16, 33])
@pytest.mark.parametrize("lambda_", [0.0, 0.9, 1.0])
def test_equals_the_sum(length: int, lambda_: float) -> None:
    arrays = draw(length, length)

    found, truth = run(arrays, lambda_), reference.gae(**arrays, lambda_=lambda_)

    np.testing.assert_allclose(found.advantages, truth, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.targets, truth + arrays["values"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", ["gae", "gae_td", "gae_returns"])
def test_equals_rlax(case: str) -> None:
    with np.load(RLAX) as stored:
        data = {key.split("/")[1]: stored[key] for key in stored if key.startswith(f"{case}/")}
    truth, lambda_ = data.pop("advantages"), float(data.pop("lambda_"))

    found = run(data, lambda_)

    np.testing.assert_allclose(found.advantages, truth, rtol=1e-5, atol=1e-5)


def test_at_lambda_1_the_target_is_the_n_step_return() -> None:
    arrays = draw(3, length=4, batch=1)
    arrays["valid"][:] = True
    arrays["discounts"][:] = 0.9

    r, bootstrap = arrays["rewards"][:, 0], arrays["bootstrap_value"][0]
    expected = r[0] + 0.9 * r[1] + 0.81 * r[2] + 0.729 * r[3] + 0.9**4 * bootstrap

    assert run(arrays, 1.0).targets[0, 0] == pytest.approx(expected, rel=1e-5)


def test_a_truncated_last_row_is_its_own_target_and_stops_sums() -> None:
    arrays = draw(4, length=6, batch=1)
    arrays["valid"][:, 0] = [True, True, False, True, True, True]
    arrays["discounts"][:] = 0.9

    found = run(arrays)

    last = arrays["values"][2, 0]
    assert found.targets[2, 0] == last
    assert found.advantages[2, 0] == 0
    assert found.targets[1, 0] == pytest.approx(arrays["rewards"][1, 0] + 0.9 * last, rel=1e-5)
    arrays["rewards"][3:] += 100
    np.testing.assert_array_equal(run(arrays).targets[:3], found.targets[:3])


def test_a_terminated_last_row_is_worth_nothing() -> None:
    arrays = draw(5, length=3, batch=1)
    arrays["valid"][:, 0] = [True, False, True]
    arrays["discounts"][:, 0] = [0.0, 0.9, 0.9]

    assert run(arrays).targets[0, 0] == pytest.approx(arrays["rewards"][0, 0], rel=1e-5)


@pytest.mark.parametrize("name", ["rewards", "discounts"])
@pytest.mark.parametrize("poison", [7.0, np.nan, np.inf])
def test_what_stands_at_no_transition_changes_nothing(name: str, poison: float) -> None:
    arrays = draw(6)
    clean = run(arrays)

    arrays[name][~arrays["valid"]] = poison
    found = run(arrays)

    np.testing.assert_array_equal(found.targets, clean.targets)
    np.testing.assert_array_equal(found.advantages, clean.advantages)


def test_no_gradient_flows() -> None:
    tensors: dict[str, Any] = {name: tf.constant(array) for name, array in draw(7).items()}
    with tf.GradientTape() as tape:
        watched = [tensors[name] for name in ("values", "bootstrap_value")]
        tape.watch(watched)
        result = gae(**tensors, lambda_=0.9)
        total = tf.reduce_sum(result.targets + result.advantages)

    assert tape.gradient(total, watched) == [None, None]


def test_refuses_shapes_that_differ() -> None:
    tensors: dict[str, Any] = {name: tf.constant(array) for name, array in draw(9).items()}

    with pytest.raises(ValueError, match=r"expected .* one shape \[T, B\] .* found .*\(12, 5\)"):
        gae(**{**tensors, "rewards": tensors["rewards"][1:]}, lambda_=0.9)
    with pytest.raises(ValueError, match=r"expected bootstrap_value of \[5\], found \(4,\)"):
        gae(**{**tensors, "bootstrap_value": tensors["bootstrap_value"][1:]}, lambda_=0.9)
