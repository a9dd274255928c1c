"""The guarded optimizer: clipping, schedule, and steps that it does not take."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from learner.agent_options import AgentOptions
from learner.agents.optimizers import Optimizer

ONE, START = tf.constant(1.0), tf.constant(0.0)


def build(**options: Any) -> tuple[Optimizer, Any]:
    weights = keras.Variable(np.array([1.0, 2.0], np.float32))
    defaults = {"optimizer": "sgd", "learning_rate": 1.0, "learning_rate_schedule": "constant"}
    agent_options = AgentOptions(**{**defaults, "clip_gradient_norm": 0.0, **options})
    return Optimizer(agent_options, {"w": weights}), weights


def test_takes_the_step() -> None:
    optimizer, weights = build()

    scalars = optimizer.apply(ONE, [tf.constant([3.0, 4.0])], START)

    np.testing.assert_allclose(weights.numpy(), [-2, -2])
    assert {name: float(value) for name, value in scalars.items()} == {
        "gradient_norm": 5.0,
        "learning_rate": 1.0,
        "skipped_updates": 0,
    }


def test_clips_by_global_norm_and_reports_it_unclipped() -> None:
    optimizer, weights = build(clip_gradient_norm=0.5)

    scalars = optimizer.apply(ONE, [tf.constant([3.0, 4.0])], START)

    np.testing.assert_allclose(weights.numpy(), [1 - 0.3, 2 - 0.4], rtol=1e-6)
    assert float(scalars["gradient_norm"]) == 5.0


@pytest.mark.parametrize("name", ["adam", "rmsprop", "sgd"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_skips_what_is_not_finite(name: str, bad: float, where: str) -> None:
    optimizer, weights = build(optimizer=name, learning_rate_schedule="linear", clip_gradient_norm=1.0)
    gradient = [tf.constant([1.0, 1.0])]
    optimizer.apply(ONE, gradient, START)
    before = {key: value.numpy() for key, value in optimizer.variables.items()}
    weights_before = weights.numpy()

    if where == "loss":
        scalars = optimizer.apply(tf.constant(bad), gradient, START)
    else:
        scalars = optimizer.apply(ONE, [tf.constant([1.0, bad])], START)

    np.testing.assert_array_equal(weights.numpy(), weights_before)
    assert int(scalars["skipped_updates"]) == 1
    for key, value in optimizer.variables.items():
        np.testing.assert_array_equal(value, before[key] + (key == "skipped_updates"))
    assert int(optimizer.apply(ONE, gradient, START)["skipped_updates"]) == 1
    assert not np.array_equal(weights.numpy(), weights_before)


def test_the_linear_schedule_ends_at_0() -> None:
    optimizer, weights = build(learning_rate_schedule="linear")
    gradient = [tf.constant([1.0, 0.0])]

    rates = [
        float(optimizer.apply(ONE, gradient, tf.constant(progress))["learning_rate"])
        for progress in (0.0, 0.5, 1.0, 1.5)
    ]

    np.testing.assert_allclose(rates, [1, 0.5, 0, 0])
    assert weights.numpy()[0] == pytest.approx(1 - 1.5)


@pytest.mark.parametrize("name", ["adam", "rmsprop", "sgd"])
def test_variables_may_have_rates_of_their_own(name: str) -> None:
    start = np.array([1.0, 2.0], np.float32)
    weights = {key: keras.Variable(start) for key in ("slow", "fast", "slow_too")}
    # A parametrised name is a str to mypy, not one of the three.
    options = AgentOptions(optimizer=name, learning_rate=0.01, learning_rate_schedule="linear")  # type: ignore[arg-type]
    optimizer = Optimizer(options, weights, {"fast": 0.1})

    scalars = optimizer.apply(ONE, [tf.constant([0.1, 0.2])] * 3, tf.constant(0.5))

    steps = {key: start - weight.numpy() for key, weight in weights.items()}
    np.testing.assert_array_equal(steps["slow"], steps["slow_too"])
    np.testing.assert_allclose(steps["fast"], 10 * steps["slow"], rtol=1e-3)
    assert float(scalars["learning_rate"]) == pytest.approx(0.005)


@pytest.mark.parametrize("name", ["adam", "rmsprop", "sgd"])
def test_names_do_not_depend_on_what_the_process_made_before(name: str) -> None:
    one, other = build(optimizer=name)[0], build(optimizer=name)[0]

    assert list(one.variables) == list(other.variables)
    assert "slot_000" in one.variables
    assert all(isinstance(value, tf.Variable) for value in one.variables.values())
