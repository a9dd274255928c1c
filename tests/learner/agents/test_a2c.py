"""A2C: its losses and gradient against NumPy, its masks, and that it learns."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

from learner.agent_options import AgentOptions
from learner.experience.trajectory import Batch
from tests import reference
from tests.learner.agents import losses, samples
from tests.learner.agents.losses import START


def numpy_losses(
    weights: Mapping[str, np.ndarray], batch: Batch, options: AgentOptions, advantages: Any = None
) -> tuple[dict[str, float], Any]:
    """The agent's losses; advantages and so targets stay what they are, if given."""
    observation = batch.observation[0].numpy().astype(np.float64)
    found = losses.evaluate(weights, observation, batch.record["action"].numpy())
    values, log_probs = found.values[:-1], found.log_probs[:-1]
    terminated = batch.terminated.numpy()
    valid = ~(terminated | batch.truncated.numpy())[:-1]
    if advantages is None:
        raw = reference.gae(
            discounts=options.discount * (1.0 - terminated[1:]),
            rewards=(batch.reward.numpy()[1:] + options.reward_shift) * options.reward_scale,
            values=values,
            bootstrap_value=found.values[-1],
            valid=valid,
            lambda_=options.gae_lambda,
        )
        normal = (raw - raw[valid].mean()) / raw[valid].std()
        advantages = (normal if options.normalize_advantages else raw, raw + values)
    advantage, target = advantages
    result = {
        "policy_loss": -(advantage * log_probs)[valid].mean(),
        "value_loss": 0.5 * ((target - values) ** 2)[valid].mean(),
        "entropy": found.entropies[:-1][valid].mean(),
    }
    result["loss"] = (
        result["policy_loss"]
        + options.value_cost * result["value_loss"]
        - options.entropy_cost * result["entropy"]
    )
    return result, advantages


@pytest.mark.parametrize("normalize_advantages", [False, True])
def test_losses_and_gradient_equal_numpy_and_finite_differences(normalize_advantages: bool) -> None:
    chosen = {
        **losses.GRADIENT_DESCENT, "hidden_sizes": (3,), "entropy_cost": 0.1, "gae_lambda": 0.9,
        "reward_shift": 0.5, "reward_scale": 2.0, "normalize_advantages": normalize_advantages,
    }  # fmt: skip
    agent, options = losses.build("a2c", samples.spec(), **chosen), losses.options_of("a2c", **chosen)
    batch = samples.rollout(agent.policy, samples.spec(), length=6, batch=3)
    before = {name: v.numpy() for name, v in agent.policy.trainable.items()}

    scalars = agent.update(batch, START)

    truth, advantages = numpy_losses(before, batch, options)
    for name, value in truth.items():
        assert float(scalars[name]) == pytest.approx(value, rel=1e-4, abs=1e-5), name
    losses.assert_gradient(
        agent, before, lambda w: numpy_losses(w, batch, options, advantages)[0]["loss"]
    )


def test_the_record_of_the_acting_policy_has_no_influence_but_its_actions() -> None:
    one, other = losses.build("a2c", samples.spec()), losses.build("a2c", samples.spec())
    batch = samples.rollout(one.policy, samples.spec())

    lag = one.update(batch, START)["behaviour_kl"]
    other_lag = other.update(losses.off_policy(batch), START)["behaviour_kl"]

    losses.assert_same_weights(one, other)
    assert float(lag) == pytest.approx(0, abs=1e-5)
    assert float(other_lag) != pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("action", [samples.DISCRETE, spaces.Box(-2, 2, (2,), np.float32)])
def test_what_stands_at_no_transition_changes_nothing(action: spaces.Space[Any]) -> None:
    environment = samples.spec(action=action)
    clean, other = losses.build("a2c", environment), losses.build("a2c", environment)
    batch = samples.rollout(clean.policy, environment, length=6, batch=4)

    clean.update(batch, START)
    other.update(losses.corrupted(batch), START)

    losses.assert_same_weights(clean, other)


@pytest.mark.parametrize("lstm_size", [0, 8])
def test_a_rewarded_action_becomes_likely(lstm_size: int) -> None:
    agent = losses.build("a2c", samples.spec(), lstm_size=lstm_size, learning_rate=0.03)
    update = tf.function(agent.update)

    for seed in range(40):
        batch = samples.rollout(agent.policy, samples.spec(), length=4, batch=8, seed=seed, end=0.0)
        rewarded = tf.cast(batch.record["action"] == 1, tf.float32)
        update(batch._replace(reward=tf.concat([tf.zeros((1, 8)), rewarded[:-1]], 0)), START)

    batch = samples.rollout(agent.policy, samples.spec(), length=20, batch=8, seed=99, end=0.0)
    assert np.mean(batch.record["action"].numpy() == 1) > 0.8
