"""PPO: its losses and gradient against NumPy, its minibatches, its limits, and that it learns."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

from learner.agent_options import AgentOptions
from learner.agents.ppo import PPOAgent, Samples, _gather
from learner.experience.trajectory import Batch
from learner.graph import Graph
from protos.errors import ConfigError
from tests import reference
from tests.learner.agents import losses, samples
from tests.learner.agents.losses import START


def build(**chosen: Any) -> PPOAgent:
    both = (chosen.pop("observation", samples.VECTOR), chosen.pop("action", samples.DISCRETE))
    agent: PPOAgent = losses.build("ppo", samples.spec(*both), **{"minibatches": 1, **chosen})
    return agent


def numpy_advantages(batch: Batch, options: AgentOptions) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and targets, by the values that were recorded."""
    values = batch.record["value"].numpy().astype(np.float64)
    terminated = batch.terminated.numpy()
    valid = ~(terminated | batch.truncated.numpy())[:-1]
    advantages = reference.gae(
        discounts=options.discount * (1.0 - terminated[1:]),
        rewards=batch.reward.numpy()[1:],
        values=values[:-1],
        bootstrap_value=values[-1],
        valid=valid,
        lambda_=options.gae_lambda,
    )
    normal = (advantages - advantages[valid].mean()) / advantages[valid].std()
    return np.where(valid, normal, 0), advantages + values[:-1]


def numpy_losses(
    weights: Mapping[str, np.ndarray], batch: Batch, options: AgentOptions
) -> dict[str, float]:
    """Schulman et al. 2017, equations 7 and 9, transition by transition."""
    advantages, targets = numpy_advantages(batch, options)
    observation = batch.observation[0].numpy().astype(np.float64)
    actions = batch.record["action"].numpy()
    found = losses.evaluate(weights, observation[:-1], actions[:-1])
    valid = ~(batch.terminated | batch.truncated).numpy()[:-1]
    objective, value_error, entropy = [], [], []
    for i in zip(*np.nonzero(valid), strict=True):
        ratio = np.exp(found.log_probs[i] - batch.record["log_prob"].numpy()[i])
        low, high = 1 - options.clip_ratio, 1 + options.clip_ratio
        clipped = min(max(ratio, low), high)
        objective.append(min(ratio * advantages[i], clipped * advantages[i]))
        old, limit = batch.record["value"].numpy()[i], options.clip_value
        near = old + min(max(found.values[i] - old, -limit), limit)
        errors = [(targets[i] - found.values[i]) ** 2, (targets[i] - near) ** 2 if limit else 0]
        value_error.append(max(errors))
        entropy.append(found.entropies[i])
    result = {
        "policy_loss": -float(np.mean(objective)),
        "value_loss": 0.5 * float(np.mean(value_error)),
        "entropy": float(np.mean(entropy)),
    }
    result["loss"] = (
        result["policy_loss"]
        + options.value_cost * result["value_loss"]
        - options.entropy_cost * result["entropy"]
    )
    return result


@pytest.mark.parametrize("clip_value", [0.0, 0.05])
def test_losses_and_gradient_equal_numpy_and_finite_differences(clip_value: float) -> None:
    chosen = {
        **losses.GRADIENT_DESCENT, "hidden_sizes": (3,), "entropy_cost": 0.1, "gae_lambda": 0.9,
        "epochs": 1, "minibatches": 1, "clip_value": clip_value,
    }  # fmt: skip
    agent, options = build(**chosen), losses.options_of("ppo", **chosen)
    batch = losses.off_policy(samples.rollout(agent.policy, samples.spec(), length=6, batch=4))
    # Values that have moved since acting, so that their clip matters.
    moved = batch.record["value"] + tf.random.stateless_normal([7, 4], [1, 2], stddev=0.1)
    batch = batch._replace(record={**batch.record, "value": moved})
    before = {name: v.numpy() for name, v in agent.policy.trainable.items()}

    scalars = agent.update(batch, START)

    assert 0.05 < float(scalars["clipped_fraction"]) < 0.95  # Both sides of the minimum are tested.
    for name, value in numpy_losses(before, batch, options).items():
        assert float(scalars[name]) == pytest.approx(value, rel=1e-4, abs=1e-5), name
    losses.assert_gradient(agent, before, lambda w: numpy_losses(w, batch, options)["loss"])


@pytest.mark.parametrize("memory", [{}, {"lstm_size": 5}])
def test_minibatches_take_the_steps_of_a_plain_loop(memory: dict[str, int]) -> None:
    chosen = {**losses.GRADIENT_DESCENT, "learning_rate": 0.1, "epochs": 2, "minibatches": 2, **memory}
    agent, other = build(**chosen), build(**chosen)
    batch = samples.rollout(agent.policy, samples.spec(), length=6, batch=4)

    scalars = agent.update(batch, START)

    pool = other.samples(batch)
    choices = other._choices(pool.first.shape[1]).numpy()
    assert int(scalars["steps"]) == len(choices) == 4
    for rows in choices:
        some = Samples(
            *(tf.nest.map_structure(lambda x, r=rows: tf.constant(x.numpy()[:, r]), field)
              for field in pool._replace(initial_state={}))
        )._replace(
            initial_state={
                name: tf.constant(value.numpy()[rows]) for name, value in pool.initial_state.items()
            }
        )  # fmt: skip
        other.descend(lambda some=some: other.losses(some), START)  # type: ignore[misc]  # the lambda's default
    for one, two in zip(agent.policy.variables, other.policy.variables, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


def test_every_pass_has_each_transition_once_in_another_order() -> None:
    agent = build(epochs=3, minibatches=4)

    first, second = (agent._choices(24).numpy() for _ in range(2))

    assert first.shape == (12, 6)
    passes = [*first.reshape(3, 24), *second.reshape(3, 24)]
    assert all(sorted(each) == list(range(24)) for each in passes)
    assert len({tuple(each) for each in passes}) == 6


@pytest.mark.parametrize(
    ("observation", "memory"), [(samples.VECTOR, {"lstm_size": 5}), (samples.IMAGE, {"frame_stack": 3})]
)
def test_a_policy_with_a_memory_keeps_unrolls_whole_and_begins_with_their_states(
    observation: spaces.Space[Any], memory: dict[str, int]
) -> None:
    agent = build(observation=observation, minibatches=2, **memory)
    batch = samples.rollout(agent.policy, samples.spec(observation), length=6, batch=4)
    # In another order, so that states must go with their unrolls.
    pool = _gather(agent.samples(batch), tf.constant([2, 0, 3, 1]))

    assert pool.first.shape == (6, 4)
    assert set(pool.initial_state) == set(batch.initial_state) != set()
    # The memory of the stored state is that of acting, so nothing has moved yet.
    assert float(agent.losses(pool)["behaviour_kl"]) == pytest.approx(0, abs=1e-6)


def test_a_policy_without_a_memory_has_single_transitions() -> None:
    agent = build()
    batch = samples.rollout(agent.policy, samples.spec(), length=6, batch=4)

    pool = agent.samples(batch)

    assert pool.first.shape == (1, 24)
    actions = batch.record["action"].numpy()[:-1].reshape(24)
    valid = pool.valid[0].numpy()
    np.testing.assert_array_equal(pool.action[0].numpy()[valid], actions[valid])
    assert float(agent.losses(pool)["behaviour_kl"]) == pytest.approx(0, abs=1e-6)


def test_the_steps_end_when_the_policy_has_gone_far() -> None:
    chosen = {"epochs": 10, "learning_rate": 0.1, "clip_gradient_norm": 0.0}
    free, limited = build(**chosen), build(**chosen, max_kl=0.01)
    batch = samples.rollout(free.policy, samples.spec(), length=6, batch=4)

    all_steps, few = free.update(batch, START), limited.update(batch, START)

    assert int(all_steps["steps"]) == 10
    assert 1 < int(few["steps"]) < 10
    assert float(few["last_kl"]) > 0.01


@pytest.mark.parametrize("action", [samples.DISCRETE, spaces.Box(-2, 2, (2,), np.float32)])
def test_what_stands_at_no_transition_changes_nothing(action: spaces.Space[Any]) -> None:
    clean, other = build(action=action), build(action=action)
    environment = samples.spec(action=action)
    batch = samples.rollout(clean.policy, environment, length=6, batch=4)

    clean.update(batch, START)
    # The value of a truncated last row is what its episode bootstraps from.
    other.update(losses.corrupted(batch, keep=("value",)), START)

    losses.assert_same_weights(clean, other)


def test_a_batch_without_transitions_is_harmless() -> None:
    agent = build(entropy_cost=0.1)
    batch = samples.rollout(agent.policy, samples.spec(), end=1.0)
    before = [v.numpy() for v in agent.policy.variables]

    scalars = {name: float(value) for name, value in agent.update(batch, START).items()}

    assert scalars["loss"] == scalars["gradient_norm"] == scalars["skipped_updates"] == 0
    for a, b in zip(before, agent.policy.variables, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_batch_of_nan_is_one_skipped_update() -> None:
    agent = build(epochs=3)
    batch = samples.rollout(agent.policy, samples.spec(), end=0.0)
    before = [v.numpy() for v in agent.policy.variables]

    scalars = agent.update(batch._replace(reward=batch.reward * np.nan), START)

    assert int(scalars["skipped_updates"]) == 1
    for a, b in zip(before, agent.policy.variables, strict=True):
        np.testing.assert_array_equal(a, b)


def test_one_graph_takes_every_batch() -> None:
    agent = build(lstm_size=4, minibatches=2)
    traces: list[Batch] = []
    batches = [samples.rollout(agent.policy, samples.spec(), batch=4, seed=seed) for seed in range(3)]

    def update(batch: Batch, progress: Any) -> Any:
        traces.append(batch)
        return agent.update(batch, progress)

    specs = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), batches[0])
    graph = Graph(update, specs, tf.TensorSpec((), tf.float32))
    steps = [int(graph(*tf.nest.flatten(batch), START)["steps"]) for batch in batches]

    assert len(traces) == 1
    assert steps == [8, 8, 8]
    assert int(agent.variables["updates"]) == 3


def test_variables_restore_an_agent() -> None:
    chosen = {"normalize_observations": True, "normalize_rewards": True, "minibatches": 2}
    agent, other = build(**chosen), build(seed=2, **chosen)
    batch = samples.rollout(agent.make_policy(), samples.spec(), length=4, batch=2)
    agent.update(batch, START)
    assert list(agent.variables) == list(other.variables)

    for name, variable in agent.variables.items():
        other.variables[name].assign(variable)
    other._seed = agent._seed  # A resumed run has the seed of its options.
    agent.update(batch, START)
    other.update(batch, START)

    losses.assert_same_weights(agent, other)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"minibatches": 5, "batch_size": 3, "unroll_length": 4}, r"--minibatches 5: .* 12 transitions"),
        ({"minibatches": 4, "batch_size": 6, "lstm_size": 8}, r"--minibatches 4: .* --batch-size 6"),
        ({"minibatches": 4, "batch_size": 6, "frame_stack": 2}, r"--minibatches 4: .* --batch-size 6"),
    ],
)
def test_minibatches_of_different_sizes_are_refused(chosen: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AgentOptions(agent="ppo", **chosen)  # type: ignore[arg-type]  # of any type


@pytest.mark.parametrize("lstm_size", [0, 8])
def test_a_rewarded_action_becomes_likely(lstm_size: int) -> None:
    agent = build(lstm_size=lstm_size, learning_rate=0.03, minibatches=2)
    update = tf.function(agent.update)

    for seed in range(12):
        batch = samples.rollout(agent.policy, samples.spec(), length=4, batch=8, seed=seed, end=0.0)
        rewarded = tf.cast(batch.record["action"] == 1, tf.float32)
        update(batch._replace(reward=tf.concat([tf.zeros((1, 8)), rewarded[:-1]], 0)), START)

    batch = samples.rollout(agent.policy, samples.spec(), length=20, batch=8, seed=99, end=0.0)
    assert np.mean(batch.record["action"].numpy() == 1) > 0.8
