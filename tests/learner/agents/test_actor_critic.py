"""What actor-critics share: normalised observations and rewards, towers and rates of the value's own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

from learner.agents.actor_critic import RETURN, ActorCriticAgent
from learner.experience.trajectory import ActInputs
from learner.training.export import export_policy
from protos.errors import ConfigError
from tests import reference
from tests.learner.agents import losses, samples
from tests.learner.agents.losses import START

AGENTS = ["vtrace", "a2c", "ppo"]
BOX = spaces.Box(-2, 2, (2,), np.float32)


def build(agent: str = "a2c", environment: Any = None, **chosen: Any) -> ActorCriticAgent:
    if agent == "ppo":
        chosen["minibatches"] = 1
    made: ActorCriticAgent = losses.build(agent, environment or samples.spec(), **chosen)
    return made


@pytest.mark.parametrize("agent", AGENTS)
def test_an_update_counts_each_row_once_and_acting_gets_the_moments(agent: str) -> None:
    learned = build(agent, normalize_observations=True)
    acting = learned.make_policy()
    one, two = (samples.rollout(acting, samples.spec(), seed=seed) for seed in range(2))

    learned.update(one, START)
    learned.update(two, START)

    rows = np.concatenate([batch.observation[0].numpy()[1:].reshape(-1, 4) for batch in (one, two)])
    moments = learned.policy.statistics
    assert float(moments["observation_normalizer/leaf_0/count"]) == len(rows)
    np.testing.assert_allclose(moments["observation_normalizer/leaf_0/mean"], rows.mean(0), atol=1e-5)
    assert "policy/observation_normalizer/leaf_0/mean" in learned.variables
    for trained, copy in zip(learned.policy.variables, acting.variables, strict=True):
        copy.assign(trained)
    found, _ = samples.act(acting, [rows], {}, greedy=True)
    normal = (rows - rows.mean(0)) / rows.std(0)
    plain = build(agent)
    for name, variable in plain.policy.trainable.items():
        variable.assign(learned.policy.trainable[name])
    truth, _ = samples.act(plain.policy, [normal], {}, greedy=True)
    assert found.record.keys() == truth.record.keys()
    for name, value in found.record.items():
        np.testing.assert_allclose(value, truth.record[name], rtol=1e-4, atol=1e-4)


def test_the_moments_are_those_of_the_batch_before_it_is_learned_from() -> None:
    agent, plain = build(normalize_observations=True), build()
    batch = samples.rollout(agent.policy, samples.spec())
    rows = batch.observation[0].numpy()[1:].reshape(-1, 4)
    normal = (batch.observation[0].numpy() - rows.mean(0)) / rows.std(0)

    scalars = agent.update(batch, START)
    truth = plain.update(batch._replace(observation=(tf.constant(normal),)), START)

    assert float(scalars["loss"]) == pytest.approx(float(truth["loss"]), rel=1e-4)


def test_acting_accumulates_the_discounted_return_of_each_episode() -> None:
    chosen = {"normalize_rewards": True, "discount": 0.9, "reward_shift": 1.0, "reward_scale": 2.0}
    policy = build(**chosen).make_policy()
    rng = np.random.default_rng(0)
    rewards, resets = rng.normal(size=(6, 3)).astype(np.float32), rng.random((6, 3)) < 0.3
    assert resets[1:].any()
    state, truth = samples.zero_state(policy, 3), np.zeros(3)

    for reward, reset in zip(rewards, resets, strict=True):
        state = {name: samples.zeroed(np.asarray(value), reset) for name, value in state.items()}
        inputs = ActInputs((tf.zeros((3, 4)),), tf.constant(reward), tf.constant(reset), tf.range(3))
        outputs, state = policy.act(inputs, state, seed=tf.constant([1, 2]), greedy=False)
        truth = np.where(reset, 0, 0.9 * truth + 2 * (reward + 1))
        np.testing.assert_allclose(outputs.record[RETURN], truth, rtol=1e-5)


@pytest.mark.parametrize("agent", AGENTS)
def test_rewards_are_normalised_by_recorded_returns(agent: str) -> None:
    learned = build(agent, normalize_rewards=True, reward_clip=1.5)
    batch = samples.rollout(learned.make_policy(), samples.spec())
    returns = np.random.default_rng(1).normal(0, 3, batch.first.shape).astype(np.float32)
    batch = batch._replace(record={**batch.record, RETURN: tf.constant(returns)})

    learned.update(batch, START)

    truth = np.clip(batch.reward.numpy()[1:], -1.5, 1.5) / returns[1:].std()
    np.testing.assert_allclose(learned.rewards(batch), truth, rtol=1e-4)
    assert float(learned.variables["reward_normalizer/count"]) == returns[1:].size


@pytest.mark.parametrize("agent", AGENTS)
def test_acting_computes_values_only_for_who_learns_from_them(agent: str) -> None:
    outputs, _ = samples.act(build(agent).make_policy(), [np.zeros((2, 4), np.float32)], {})

    assert ("value" in outputs.record) == (agent == "ppo")


def test_only_acting_in_training_tracks_returns() -> None:
    agent = build(normalize_rewards=True)

    assert dict(agent.policy.state_specs) == {}
    assert list(agent.make_policy().state_specs) == [RETURN]


def test_an_exported_policy_normalises(tmp_path: Path) -> None:
    environment = samples.spec(action=BOX)
    agent = build(environment=environment, normalize_observations=True, normalize_rewards=True)
    agent.update(samples.rollout(agent.make_policy(), environment, seed=3), START)
    rows = np.random.default_rng(0).normal(5, 3, (7, 4)).astype(np.float32)

    export_policy(agent.policy, environment, tmp_path)

    loaded = tf.saved_model.load(str(tmp_path))
    assert list(loaded.signatures) == ["serving_default"]
    found = loaded.signatures["serving_default"](
        observation=tf.constant(rows), reset=tf.zeros(7, tf.bool)
    )
    truth, _ = samples.act(agent.policy, [rows], {}, greedy=True)
    np.testing.assert_allclose(found["action"], truth.action, rtol=1e-5, atol=1e-6)


def test_the_value_function_may_have_a_tower_and_a_rate_of_its_own() -> None:
    chosen = {**losses.GRADIENT_DESCENT, "value_hidden_sizes": (5, 3), "activation": "relu"}
    agent = build(**chosen, value_learning_rate=10.0)
    other = build(**chosen)
    shapes = {name: v.shape for name, v in agent.policy.trainable.items()}
    assert shapes["network/tower_0/encoder/mlp/dense_0/kernel"] == (4, 6)
    assert shapes["network/tower_1/encoder/mlp/dense_1/kernel"] == (5, 3)
    assert shapes["value_head/kernel"] == (3, 1)
    before = {name: v.numpy() for name, v in agent.policy.trainable.items()}
    batch = samples.rollout(agent.policy, samples.spec())

    agent.update(batch, START)
    other.update(batch, START)

    for name, variable in agent.policy.trainable.items():
        factor = 10 if name.startswith(("value_head", "network/tower_1")) else 1
        step = other.policy.trainable[name].numpy() - before[name]
        np.testing.assert_allclose(variable, before[name] + factor * step, rtol=1e-4, atol=1e-6)


def test_a_tower_of_the_values_own_is_refused_where_convolutions_are_shared() -> None:
    with pytest.raises(
        ConfigError, match=r"--value-hidden-sizes .* shared: leave it out, or say --torso"
    ):
        build(environment=samples.spec(samples.IMAGE), value_hidden_sizes=(8,))


@pytest.mark.parametrize(
    ("name", "activation"), [("tanh", np.tanh), ("relu6", lambda x: np.clip(x, 0, 6))]
)
def test_the_activation_is_between_the_layers(name: str, activation: Any) -> None:
    agent = build("ppo", activation=name)
    weights = {key: v.numpy() for key, v in agent.policy.trainable.items()}
    rows = np.random.default_rng(0).normal(0, 5, (9, 4)).astype(np.float32)

    found, _ = samples.act(agent.policy, [rows], {})

    tower = "network/tower_1/encoder/mlp/dense_0"
    hidden = activation(rows @ weights[f"{tower}/kernel"] + weights[f"{tower}/bias"])
    truth = (hidden @ weights["value_head/kernel"] + weights["value_head/bias"])[:, 0]
    np.testing.assert_allclose(found.record["value"], truth, rtol=1e-4, atol=1e-5)


def test_a_box_policy_may_bound_its_mean_and_compute_its_deviation() -> None:
    agent = build(environment=samples.spec(action=BOX), policy_mean="tanh", policy_std="softplus")
    assert agent.policy.trainable["policy_head/kernel"].shape == (6, 4)
    assert "policy_head/free" not in agent.policy.trainable
    distribution = agent.policy.distribution
    rng = np.random.default_rng(0)
    parameters = rng.normal(0, 2, (8, 4)).astype(np.float32)
    mean, std = np.tanh(parameters[:, :2]), np.log1p(np.exp(parameters[:, 2:])) + 1e-4
    action = (mean + std * rng.normal(0, 1, (8, 2))).astype(np.float32)

    np.testing.assert_allclose(distribution.mode(parameters), mean, rtol=1e-5)
    log_prob, entropy = distribution.log_prob(parameters, action), distribution.entropy(parameters)
    for i in range(8):
        truth = reference.gaussian_log_prob(mean[i], std[i], action[i])
        assert float(log_prob[i]) == pytest.approx(truth, rel=1e-4)
        assert float(entropy[i]) == pytest.approx(reference.gaussian_entropy(std[i]), rel=1e-4)


@pytest.mark.parametrize("chosen", [{"policy_mean": "tanh"}, {"policy_std": "softplus"}])
def test_shapes_of_a_box_policy_are_refused_for_categories(chosen: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"--policy-(mean tanh|std softplus) is of Box actions, but"):
        build(**chosen)
