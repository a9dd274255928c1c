"""SAC's losses, targets and gradients against NumPy and finite differences."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

from learner.agent_options import AgentOptions
from learner.agents.agent import PRIORITIES
from learner.experience.trajectory import Batch
from tests import reference
from tests.learner.agents import samples
from tests.learner.agents.sac_samples import BOX, DESCENT, DISCRETE, arrays, build, windows

START = tf.constant(0.0)


def layers(weights: dict[str, np.ndarray], network: str) -> list[tuple[np.ndarray, np.ndarray]]:
    return [
        (weights[f"{network}/dense_{i}/kernel"], weights[f"{network}/dense_{i}/bias"]) for i in range(2)
    ]


class Truth:
    """SAC's losses, written again."""

    def __init__(self, options: AgentOptions, batch: Batch, noises: list[np.ndarray]) -> None:
        self.options = options
        self.noises = noises
        self.observation = batch.observation[0].numpy().astype(np.float64)
        self.action = batch.record["action"].numpy()[0]
        self.weight = batch.weight.numpy()
        self.window = reference.n_step_window(
            batch.reward.numpy(), batch.terminated.numpy(), batch.truncated.numpy(), options.discount
        )
        self.box = self.action.dtype.kind == "f"

    def expected(
        self,
        weights: dict[str, np.ndarray],
        critics: dict[str, np.ndarray],
        name: str,
        rows: Any,
        noise: Any,
    ) -> tuple[np.ndarray, np.ndarray]:
        """min Q, and log-probability, under the policy."""
        columns = np.arange(len(self.weight))
        x = self.observation[rows, columns]
        parameters = reference.batched_mlp(layers(weights, "policy"), x)[0]
        if self.box:
            action, log_prob = reference.squashed_sample(parameters, noise)
            q = reference.batched_mlp(layers(critics, name), np.concatenate([x, action], -1))
            return q[..., 0].min(0), log_prob
        p = reference.softmax(parameters)
        q = reference.batched_mlp(layers(critics, name), x).min(0)
        return (p * q).sum(-1), (p * np.log(p)).sum(-1)

    def targets(self, weights: dict[str, np.ndarray]) -> np.ndarray:
        q, log_prob = self.expected(weights, weights, "targets", self.window.rows, self.noises[0])
        return self.window.returns + self.window.discounts * (
            q - np.exp(weights["log_alpha"]) * log_prob
        )

    def errors(self, weights: dict[str, np.ndarray], targets: np.ndarray) -> np.ndarray:
        x = self.observation[0]
        if self.box:
            x = np.concatenate([x, self.action], -1)
        q = reference.batched_mlp(layers(weights, "critics"), x)
        if self.box:
            return q[..., 0] - targets
        return np.stack([each[np.arange(len(self.action)), self.action] for each in q]) - targets

    def critic_loss(self, weights: dict[str, np.ndarray], targets: np.ndarray) -> float:
        losses = 0.5 * (self.errors(weights, targets) ** 2).sum(0) * self.weight
        return float(losses[self.window.valid].mean())

    def policy_loss(self, weights: dict[str, np.ndarray], fixed: dict[str, np.ndarray]) -> float:
        q, log_prob = self.expected(weights, fixed, "critics", 0, self.noises[1])
        return float((np.exp(fixed["log_alpha"]) * log_prob - q)[self.window.valid].mean())

    def entropy(self, weights: dict[str, np.ndarray]) -> float:
        _, log_prob = self.expected(weights, weights, "critics", 0, self.noises[1])
        return float(-log_prob[self.window.valid].mean())


@pytest.fixture
def noises(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """What the next calls of TensorFlow's normal generator will give, in their order."""
    rng = np.random.default_rng(11)
    drawn = [rng.normal(size=(12, 2)) for _ in range(2)]
    calls: Iterator[np.ndarray] = iter(drawn)
    monkeypatch.setattr(
        tf.random, "stateless_normal", lambda shape, seed: tf.constant(next(calls), tf.float32)
    )
    return drawn


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("action", [BOX, DISCRETE])
def test_losses_and_gradients_equal_numpy_and_finite_differences(
    action: spaces.Space[Any], length: int, request: pytest.FixtureRequest
) -> None:
    environment = samples.spec(action=action)
    chosen: dict[str, Any] = {
        **DESCENT, "hidden_sizes": (4,), "target_smoothing": 0.25, "initial_temperature": 0.3,
        "priority_exponent": 0.5, "n_step": length, "discount": 0.9,
    }  # fmt: skip
    agent = build(environment, **chosen)
    for i, name in enumerate(("targets/dense_1/bias", "critics/dense_1/bias", "policy/dense_1/bias")):
        variable = agent.variables[name]
        variable.assign(np.random.default_rng(i).normal(0, 0.3, variable.shape))
    batch = windows(agent, environment, length)
    noises = request.getfixturevalue("noises")
    before = arrays(agent)

    outputs = {name: np.asarray(value) for name, value in agent.update(batch, START).items()}

    after = arrays(agent)
    truth = Truth(AgentOptions(agent="sac", **chosen), batch, noises)
    targets = truth.targets(before)
    surplus = truth.entropy(before) - (-2.0 if truth.box else 0.3 * np.log(3))
    assert 0 < truth.window.valid.sum() < 12
    expected = {
        "critic_loss": truth.critic_loss(before, targets),
        "policy_loss": truth.policy_loss(before, before),
        "temperature_loss": np.log(0.3) * surplus,
        "entropy": truth.entropy(before),
        "temperature": 0.3,
    }
    for name, value in expected.items():
        assert outputs[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
    valid = truth.window.valid
    priorities = np.abs(truth.errors(before, targets)).mean(0) * valid
    np.testing.assert_allclose(outputs[PRIORITIES], priorities, rtol=1e-3, atol=1e-4)

    losses = {
        "critics": lambda weights: truth.critic_loss(weights, targets),
        "policy": lambda weights: truth.policy_loss(weights, before),
    }
    for network, loss in losses.items():
        for name in (n for n in before if n.startswith(f"{network}/dense")):
            gradient = reference.numeric_gradient(
                lambda x, name=name, loss=loss: loss({**before, name: x}), before[name], 1e-5
            )
            found = before[name] - after[name]
            np.testing.assert_allclose(found, gradient, rtol=2e-3, atol=1e-4, err_msg=name)
    assert before["log_alpha"] - after["log_alpha"] == pytest.approx(surplus, rel=1e-3, abs=1e-4)
    for name in (n for n in before if n.startswith("targets/")):
        trained = after[name.replace("targets", "critics")]
        followed = 0.75 * before[name] + 0.25 * trained
        np.testing.assert_allclose(after[name], followed, rtol=1e-4, atol=1e-5, err_msg=name)
