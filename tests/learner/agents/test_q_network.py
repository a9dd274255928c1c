"""Q networks: dueling heads, exploration, and memory that is brought up to date by the burn-in."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

from learner.agent_options import AgentOptions
from learner.agents.q_network import DuelingHead, QPolicy, epsilon_ladder
from learner.config import TrainOptions
from learner.experience.trajectory import ActInputs, Batch, State
from protos.errors import ConfigError
from tests.learner.agents import samples

MEMORIES = [{"lstm_size": 5}, {"lstm_size": 5, "frame_stack": 3}, {"frame_stack": 2}]


def build(space: spaces.Space[Any] = samples.VECTOR, **options: Any) -> QPolicy:
    options = {"hidden_sizes": (6,), "agent": "r2d2", **options}
    return QPolicy(samples.spec(space), AgentOptions(**options), 1)


def test_dueling_head_is_the_papers() -> None:
    head = DuelingHead(4, 3, np.random.default_rng(0))
    w = {name: np.asarray(v.numpy(), np.float64) for name, v in head.variables.items()}
    x = np.random.default_rng(1).normal(size=(7, 4))

    def stream(name: str) -> np.ndarray:
        hidden = np.maximum(x @ w[f"{name}/hidden/kernel"] + w[f"{name}/hidden/bias"], 0)
        return hidden @ w[f"{name}/output/kernel"] + w[f"{name}/output/bias"]

    value, advantage = stream("value"), stream("advantage")
    expected = value + (advantage - advantage.mean(1, keepdims=True))
    np.testing.assert_allclose(head(tf.constant(x, tf.float32)), expected, rtol=1e-5, atol=1e-6)


def test_the_ladder_is_the_papers() -> None:
    options = TrainOptions(env="x", agent="r2d2", num_actors=2, envs_per_actor=4)
    np.testing.assert_allclose(epsilon_ladder(options), 0.4 ** np.linspace(1, 8, 8), rtol=1e-6)
    assert len(epsilon_ladder(AgentOptions(agent="r2d2"))) == 16
    options = TrainOptions(
        env="x", agent="r2d2", epsilon_environments=3, epsilon=0.5, epsilon_exponent=3
    )
    np.testing.assert_allclose(epsilon_ladder(options), [0.5, 0.25, 0.125])


def act(policy: QPolicy, rows: int, slot: int, seed: int, greedy: bool = False) -> np.ndarray:
    observation = tf.zeros((rows, 4))
    inputs = ActInputs((observation,), tf.zeros(rows), tf.zeros(rows, tf.bool), tf.fill([rows], slot))
    outputs, _ = policy.act(inputs, {}, seed=tf.constant([seed, 1]), greedy=greedy)
    np.testing.assert_array_equal(outputs.action, outputs.record["action"])
    return np.asarray(outputs.action)


def test_each_environment_explores_as_much_as_the_ladder_says() -> None:
    policy = build(epsilon_environments=3, epsilon=0.5, epsilon_exponent=4)
    greedy = act(policy, 1, 0, 0, greedy=True)[0]
    for slot, epsilon in enumerate([0.5, 0.5**2.5, 0.5**4]):
        for again in (slot, slot + 3):  # one environment more than the ladder has begins it anew
            actions = act(policy, 20_000, again, seed=7)
            shares = np.bincount(actions, minlength=3) / len(actions)
            expected = np.full(3, epsilon / 3)
            expected[greedy] += 1 - epsilon
            np.testing.assert_allclose(shares, expected, atol=0.012)


def test_other_seeds_explore_otherwise() -> None:
    policy = build(epsilon_environments=1, epsilon=1.0)
    assert not np.array_equal(act(policy, 50, 0, seed=1), act(policy, 50, 0, seed=2))
    np.testing.assert_array_equal(act(policy, 50, 0, seed=1), act(policy, 50, 0, seed=1))


def test_evaluation_is_greedy_or_has_an_epsilon_of_its_own() -> None:
    assert len(set(act(build(epsilon=1.0), 500, 0, seed=3, greedy=True))) == 1
    explored = act(build(epsilon=0.0, eval_epsilon=0.3), 20_000, 0, seed=3, greedy=True)
    assert np.bincount(explored).max() / 20_000 == pytest.approx(0.8, abs=0.012)


def test_actions_are_the_environments() -> None:
    space = spaces.Discrete(3, start=5)
    policy = QPolicy(
        samples.spec(action=space), AgentOptions(agent="r2d2", epsilon=1.0, epsilon_environments=1), 1
    )
    rows = np.zeros((50, 4), np.float32)
    outputs, _ = samples.act(policy, [rows], {})
    assert set(outputs.action.numpy()) == {5, 6, 7}
    assert set(outputs.record["action"].numpy()) == {0, 1, 2}


@pytest.mark.parametrize("action", [spaces.Box(-1, 1, (2,), np.float32), spaces.MultiDiscrete([2, 3])])
def test_other_actions_are_refused_with_the_way_out(action: spaces.Space[Any]) -> None:
    with pytest.raises(ConfigError, match=r"--agent r2d2 learns .* Discrete .* choose --agent vtrace"):
        QPolicy(samples.spec(action=action), AgentOptions(agent="r2d2"), 1)


def acted_values(policy: QPolicy, batch: Batch) -> tuple[np.ndarray, list[State]]:
    """Q of all rows as acting had them, step by step, and the memory before each."""
    state, values, states = batch.initial_state, [], []
    for t in range(batch.first.shape[0]):
        reset = batch.first[t].numpy()
        if t:  # the stored memory is zeroed already
            state = {k: tf.constant(samples.zeroed(v.numpy(), reset)) for k, v in state.items()}
        states.append(state)
        (features,), state = policy._network.step([leaf[t] for leaf in batch.observation], state)
        values.append(policy._head(features).numpy())
    return np.stack(values), states


@pytest.mark.parametrize("options", MEMORIES)
@pytest.mark.parametrize("burn_in", [0, 1, 4])
def test_values_after_the_burn_in_are_those_of_acting(options: dict[str, int], burn_in: int) -> None:
    policy = build(samples.IMAGE, torso="shallow", **options)
    batch = samples.rollout(policy, samples.spec(samples.IMAGE), length=7, batch=4)
    expected, _ = acted_values(policy, batch)
    found = policy.q_values(batch, burn_in)
    np.testing.assert_allclose(found, expected[burn_in:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", MEMORIES[:2])
def test_a_memory_that_is_a_burn_in_too_late_would_be_noticed(options: dict[str, int]) -> None:
    """What is stored must be the memory before the burn-in: with that of the row after it, the values
    are others than those the policy acted by."""
    policy = build(samples.IMAGE, torso="shallow", **options)
    batch = samples.rollout(policy, samples.spec(samples.IMAGE), length=7, batch=4, end=0.0)
    expected, states = acted_values(policy, batch)
    late = policy.q_values(batch._replace(initial_state=states[1]), 1)
    assert not np.allclose(late[0], expected[1], rtol=1e-4, atol=1e-5)


def test_no_gradient_flows_through_the_burn_in() -> None:
    policy = build(lstm_size=5)
    batch = samples.rollout(policy, samples.spec(), length=7, batch=4)
    _, states = acted_values(policy, batch)
    rest = batch._replace(
        observation=tuple(leaf[3:] for leaf in batch.observation),
        first=batch.first[3:],
        initial_state=states[3],
    )

    def gradient(part: Batch, burn_in: int) -> list[np.ndarray]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(policy.q_values(part, burn_in)))
        return [np.asarray(g) for g in tape.gradient(loss, policy.variables)]

    for found, expected in zip(gradient(batch, 3), gradient(rest, 0), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
    whole = zip(gradient(batch, 3), gradient(batch, 0), strict=True)
    assert any(not np.allclose(a, b, rtol=1e-2) for a, b in whole)
