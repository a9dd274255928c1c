"""The V-trace agent: its gradient, its masks, and that it learns."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

from learner.agent_options import AgentOptions
from learner.agents.vtrace import VTraceAgent
from learner.experience.trajectory import Batch
from protos.specs import EnvironmentSpec
from tests import reference
from tests.learner.agents import losses, samples
from tests.learner.agents.losses import START


def build(environment: EnvironmentSpec, seed: int = 1, **options: Any) -> VTraceAgent:
    agent: VTraceAgent = losses.build("vtrace", environment, seed=seed, **options)
    return agent


def numpy_losses(
    weights: dict[str, np.ndarray], batch: Batch, targets: Any, options: AgentOptions
) -> tuple[dict[str, float], Any]:
    """The agent's losses; `targets` are V-trace's if given."""
    observation = batch.observation[0].numpy().astype(np.float64)
    found = losses.evaluate(weights, observation, batch.record["action"].numpy())
    values, log_probs = found.values, found.log_probs[:-1]
    terminated = batch.terminated.numpy()
    valid = ~(terminated | batch.truncated.numpy())[:-1]
    if targets is None:
        targets = reference.vtrace(
            log_rhos=log_probs - batch.record["log_prob"].numpy()[:-1],
            discounts=options.discount * (1.0 - terminated[1:]),
            rewards=np.clip(batch.reward.numpy()[1:], -options.reward_clip, options.reward_clip),
            values=values[:-1],
            bootstrap_value=values[-1],
            valid=valid,
            lambda_=options.trace_lambda,
        )
    result = {
        "policy_loss": -(targets.advantages * log_probs)[valid].mean(),
        "value_loss": 0.5 * ((targets.targets - values[:-1]) ** 2)[valid].mean(),
        "entropy": found.entropies[:-1][valid].mean(),
    }
    result["loss"] = (
        result["policy_loss"]
        + options.value_cost * result["value_loss"]
        - options.entropy_cost * result["entropy"]
    )
    return result, targets


def test_losses_and_gradient_equal_numpy_and_finite_differences() -> None:
    chosen = {
        **losses.GRADIENT_DESCENT, "reward_clip": 0.8, "trace_lambda": 0.9, "hidden_sizes": (3,),
        "entropy_cost": 0.1,
    }  # fmt: skip
    agent, options = build(samples.spec(), **chosen), losses.options_of("vtrace", **chosen)
    batch = losses.off_policy(samples.rollout(agent.policy, samples.spec(), length=6, batch=3))
    before = {name: v.numpy() for name, v in agent.policy.trainable.items()}

    scalars = agent.update(batch, START)

    truth, targets = numpy_losses(before, batch, None, options)
    for name, value in truth.items():
        assert float(scalars[name]) == pytest.approx(value, rel=1e-4, abs=1e-5), name
    losses.assert_gradient(
        agent, before, lambda w: numpy_losses(dict(w), batch, targets, options)[0]["loss"]
    )


@pytest.mark.parametrize(
    "action", [samples.DISCRETE, spaces.MultiDiscrete([2, 3]), spaces.Box(-2, 2, (2,), np.float32)]
)
def test_what_stands_at_no_transition_changes_nothing(action: spaces.Space[Any]) -> None:
    environment = samples.spec(action=action)
    clean, other = build(environment), build(environment)
    batch = samples.rollout(clean.policy, environment, length=6, batch=4)

    clean.update(batch, START)
    other.update(losses.corrupted(batch), START)

    losses.assert_same_weights(clean, other)


def test_what_stands_at_a_transition_changes_something() -> None:
    clean, other = build(samples.spec()), build(samples.spec())
    batch = samples.rollout(clean.policy, samples.spec(), length=6, batch=4)

    clean.update(batch, START)
    other.update(batch._replace(reward=batch.reward + 1.0), START)

    pairs = zip(clean.policy.variables, other.policy.variables, strict=True)
    assert any(not np.array_equal(a, b) for a, b in pairs)


def test_a_batch_without_transitions_is_harmless() -> None:
    agent = build(samples.spec())
    batch = samples.rollout(agent.policy, samples.spec(), end=1.0)
    before = [v.numpy() for v in agent.policy.variables]

    scalars = {name: float(value) for name, value in agent.update(batch, START).items()}

    assert scalars["loss"] == scalars["gradient_norm"] == scalars["skipped_updates"] == 0
    for a, b in zip(before, agent.policy.variables, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_batch_of_nan_is_skipped_and_counted() -> None:
    agent = build(samples.spec())
    batch = samples.rollout(agent.policy, samples.spec(), end=0.0)
    before = [v.numpy() for v in agent.policy.variables]

    scalars = agent.update(batch._replace(reward=batch.reward * np.nan), START)

    assert int(scalars["skipped_updates"]) == 1
    assert int(agent.variables["optimizer/skipped_updates"]) == 1
    for a, b in zip(before, agent.policy.variables, strict=True):
        np.testing.assert_array_equal(a, b)


def test_on_policy_there_is_no_lag() -> None:
    agent = build(samples.spec())
    batch = samples.rollout(agent.policy, samples.spec())

    scalars = agent.losses(batch)

    assert float(scalars["importance_weight"]) == pytest.approx(1, abs=1e-5)
    assert float(scalars["behaviour_kl"]) == pytest.approx(0, abs=1e-5)
    assert float(agent.losses(losses.off_policy(batch))["importance_weight"]) < 0.99


@pytest.mark.parametrize("lstm_size", [0, 8])
def test_a_rewarded_action_becomes_likely(lstm_size: int) -> None:
    agent = build(samples.spec(), lstm_size=lstm_size, learning_rate=0.03)
    update = tf.function(agent.update)

    for seed in range(40):
        batch = samples.rollout(agent.policy, samples.spec(), length=4, batch=8, seed=seed, end=0.0)
        rewarded = tf.cast(batch.record["action"] == 1, tf.float32)
        update(batch._replace(reward=tf.concat([tf.zeros((1, 8)), rewarded[:-1]], 0)), START)

    batch = samples.rollout(agent.policy, samples.spec(), length=20, batch=8, seed=99, end=0.0)
    assert np.mean(batch.record["action"].numpy() == 1) > 0.8


def test_a_box_policy_finds_the_rewarded_place() -> None:
    environment = samples.spec(action=spaces.Box(-2, 2, (1,), np.float32))
    agent = build(environment, learning_rate=0.02, entropy_cost=0.0, discount=0.0)
    update = tf.function(agent.update)

    for seed in range(60):
        batch = samples.rollout(agent.policy, environment, length=4, batch=16, seed=seed, end=0.0)
        distance = tf.abs(batch.record["action"][..., 0] - 0.5)
        update(batch._replace(reward=tf.concat([tf.zeros((1, 16)), -distance[:-1]], 0)), START)

    row = np.zeros((1, 4), np.float32)
    outputs, _ = samples.act(agent.policy, [row], {}, greedy=True)
    assert float(outputs.action[0, 0]) == pytest.approx(1.0, abs=0.3)  # 0.5 of the way to 2.


def test_traces_once() -> None:
    agent = build(samples.spec(), lstm_size=4)
    traces = []

    @tf.function
    def update(batch: Batch) -> Any:
        traces.append(batch)
        return agent.update(batch, START)

    for seed in range(3):
        update(samples.rollout(agent.policy, samples.spec(), seed=seed))

    assert len(traces) == 1


def test_variables_restore_an_agent() -> None:
    environment = samples.spec(samples.IMAGE)
    options = {"lstm_size": 4, "frame_stack": 2}
    agent, other = build(environment, **options), build(environment, seed=2, **options)
    batch = samples.rollout(agent.policy, environment, length=2, batch=2)
    agent.update(batch, START)
    assert list(agent.variables) == list(other.variables)

    for name, variable in agent.variables.items():
        other.variables[name].assign(variable)
    agent.update(batch, START)
    other.update(batch, START)

    for name, variable in agent.variables.items():
        np.testing.assert_array_equal(variable, other.variables[name], err_msg=name)


def test_variables_have_readable_names() -> None:
    names = list(build(samples.spec()).variables)

    assert names[:2] == [
        "policy/network/tower_0/encoder/mlp/dense_0/kernel",
        "policy/network/tower_0/encoder/mlp/dense_0/bias",
    ]
    assert {"optimizer/slot_000", "optimizer/skipped_updates"} <= set(names)


def test_make_policy_makes_variables_of_its_own() -> None:
    agent = build(samples.spec())
    copy = agent.make_policy()
    before = [v.numpy() for v in copy.variables]
    for mine, trained in zip(copy.variables, agent.policy.variables, strict=True):
        np.testing.assert_array_equal(mine, trained)
        assert mine is not trained

    agent.update(samples.rollout(agent.policy, samples.spec(), end=0.0), START)

    for mine, trained, old in zip(copy.variables, agent.policy.variables, before, strict=True):
        np.testing.assert_array_equal(mine, old)
        assert not np.array_equal(mine, trained)


@pytest.mark.parametrize(
    "action",
    [
        spaces.Discrete(4, start=3),
        spaces.MultiDiscrete([2, 5], dtype=np.int8),
        spaces.Box(-1, 3, (2, 1), np.float64),
    ],
)
@pytest.mark.parametrize("greedy", [False, True])
def test_actions_lie_in_the_space(action: spaces.Space[Any], greedy: bool) -> None:
    environment = samples.spec(action=action)
    policy = build(environment).policy
    row = samples.draw_leaf(environment.observation[0], (50,), np.random.default_rng(0))

    outputs, _ = samples.act(policy, [row], {}, greedy=greedy)

    assert outputs.action.numpy().dtype == environment.action.dtype
    assert all(action.contains(a) for a in outputs.action.numpy().astype(action.dtype))


def test_greedy_does_not_depend_on_the_seed() -> None:
    policy = build(samples.spec()).policy
    row = samples.draw_leaf(samples.spec().observation[0], (50,), np.random.default_rng(0))

    def actions(seed: int, greedy: bool) -> np.ndarray:
        outputs, _ = samples.act(policy, [row], {}, seed=seed, greedy=greedy)
        return np.asarray(outputs.action)

    np.testing.assert_array_equal(actions(1, True), actions(2, True))
    assert not np.array_equal(actions(1, False), actions(2, False))
