"""The R2D2 agent: its loss and gradient, masks, weights and priorities, and that it learns."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from learner.agent_options import AgentOptions
from learner.agents.agent import PRIORITIES
from learner.agents.build import make_agent
from learner.agents.r2d2 import R2D2Agent
from learner.experience.trajectory import Batch
from learner.maths.td_targets import double_q_errors
from protos.specs import EnvironmentSpec
from tests import reference
from tests.learner.agents import samples

START = tf.constant(0.0)
"""Progress of a run that begins."""

RLAX = Path(__file__).parents[2] / "data" / "rlax_q_values.npz"

SGD = {
    "optimizer": "sgd", "learning_rate": 1.0, "learning_rate_schedule": "constant",
    "clip_gradient_norm": 0.0,
}  # fmt: skip
"""Plain gradient descent at rate 1: the change of the weights is the gradient."""


def options_of(**options: Any) -> AgentOptions:
    return AgentOptions(**{"agent": "r2d2", "hidden_sizes": (4,), **options})


def build(environment: EnvironmentSpec | None = None, seed: int = 1, **options: Any) -> R2D2Agent:
    agent = make_agent(options_of(**options), environment or samples.spec(), seed=seed)
    assert isinstance(agent, R2D2Agent)
    return agent


def weighted(batch: Batch, seed: int = 0) -> Batch:
    weight = np.random.default_rng(seed).uniform(0.2, 1, batch.weight.shape).astype(np.float32)
    return batch._replace(weight=tf.constant(weight))


def numpy_q(weights: dict[str, np.ndarray], observation: np.ndarray) -> np.ndarray:
    """The network's Q, written again for one tanh layer."""
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    encoder = "network/tower_0/encoder/mlp/dense_0"
    x = np.tanh(observation.astype(np.float64) @ w[f"{encoder}/kernel"] + w[f"{encoder}/bias"])

    def stream(name: str) -> np.ndarray:
        hidden = np.maximum(x @ w[f"head/{name}/hidden/kernel"] + w[f"head/{name}/hidden/bias"], 0)
        return hidden @ w[f"head/{name}/output/kernel"] + w[f"head/{name}/output/bias"]

    advantage = stream("advantage")
    return stream("value") + advantage - advantage.mean(-1, keepdims=True)


def numpy_losses(
    weights: dict[str, np.ndarray],
    target: dict[str, np.ndarray],
    batch: Batch,
    options: AgentOptions,
    targets: np.ndarray | None = None,
) -> tuple[float, np.ndarray, np.ndarray]:
    """Loss, priorities and targets; these are the given ones, if any: no gradient flows there."""
    observation = batch.observation[0].numpy()
    q, target_q = numpy_q(weights, observation), numpy_q(target, observation)
    terminated = batch.terminated.numpy()
    valid = ~(terminated | batch.truncated.numpy())[:-1]
    if targets is None:
        values = np.zeros(q.shape[:2])
        for i in np.ndindex(*values.shape):
            values[i] = reference.unscale_value(target_q[i][np.argmax(q[i])])
        targets = reference.rescale_value(
            reference.n_step_targets(
                rewards=np.clip(batch.reward.numpy()[1:], -options.reward_clip, options.reward_clip),
                discounts=options.discount * (1.0 - terminated[1:]),
                values=values,
                valid=valid,
                n=options.n_step,
            )
        )
    actions = batch.record["action"].numpy()
    errors = np.zeros(valid.shape)
    for i in np.ndindex(*valid.shape):
        if valid[i]:
            errors[i] = targets[i] - q[i][actions[i]]
    loss = sum(
        batch.weight.numpy()[b] * errors[t, b] ** 2 / 2 for t, b in np.ndindex(*valid.shape)
    ) / max(valid.sum(), 1)
    eta = options.priority_max_share
    priorities = [
        eta * np.abs(e[v]).max() + (1 - eta) * np.abs(e[v]).mean() if v.any() else 0
        for e, v in zip(errors.T, valid.T, strict=True)
    ]
    return loss, np.array(priorities), targets


@pytest.mark.parametrize("n_step", [1, 3])
def test_loss_priorities_and_gradient_equal_numpy_and_finite_differences(n_step: int) -> None:
    chosen = {**SGD, "n_step": n_step, "reward_clip": 0.8, "priority_max_share": 0.7}
    agent, options = build(**chosen), options_of(**chosen)
    batch = weighted(samples.rollout(agent.policy, samples.spec(), length=7, batch=4))
    rng = np.random.default_rng(3)
    for variable in agent._target.variables:
        variable.assign_add(rng.normal(0, 0.5, variable.shape).astype(np.float32))
    before = {name: v.numpy() for name, v in agent.policy.trainable.items()}
    target = {name: v.numpy() for name, v in agent._target.trainable.items()}

    outputs = agent.update(batch, START)

    loss, priorities, targets = numpy_losses(before, target, batch, options)
    assert float(outputs["loss"]) == pytest.approx(loss, rel=1e-4)
    np.testing.assert_allclose(outputs[PRIORITIES], priorities, rtol=1e-4, atol=1e-6)
    for name, variable in agent.policy.trainable.items():

        def changed(x: np.ndarray, name: str = name) -> float:
            return numpy_losses({**before, name: x}, target, batch, options, targets)[0]

        gradient = reference.numeric_gradient(changed, before[name].astype(np.float64), 1e-6)
        found = before[name] - variable.numpy()
        np.testing.assert_allclose(found, gradient, rtol=1e-3, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("n", [1, 3, 5, 20])
def test_double_q_learning_equals_rlax(n: int) -> None:
    with np.load(RLAX) as stored:
        data = {key.split("/")[1]: stored[key] for key in stored if key.startswith(f"n_{n}/")}
    names = ("q", "target_q", "actions", "rewards", "discounts")
    found = double_q_errors(
        **{name: tf.constant(data[name]) for name in names},
        valid=tf.ones(data["rewards"].shape, tf.bool),
        n=n,
        rescaled=True,
    )
    np.testing.assert_allclose(found, data["td_errors"], rtol=1e-4, atol=1e-4)


def test_values_are_learned_as_they_are_without_rescaling() -> None:
    batch = samples.rollout(build().policy, samples.spec(), length=5, batch=3, end=0.0)
    plain, rescaled = (build(value_rescaling=v, discount=0.0).losses(batch) for v in (False, True))
    taken = build().policy.q_values(batch).numpy()[:-1]
    q = np.take_along_axis(taken, batch.record["action"].numpy()[:-1, :, None], -1)[..., 0]
    reward = batch.reward.numpy()[1:]
    assert float(plain["loss"]) == pytest.approx(np.mean((reward - q) ** 2) / 2, rel=1e-4)
    scaled = reference.rescale_value(reward)
    assert float(rescaled["loss"]) == pytest.approx(np.mean((scaled - q) ** 2) / 2, rel=1e-4)


def corrupted(batch: Batch, last: np.ndarray) -> Batch:
    """The batch with nonsense in the action of last rows and the reward of the rows after."""
    action = batch.record["action"].numpy()
    action[last] = 12345
    reward = batch.reward.numpy()
    reward[1:][last[:-1]] = np.nan
    return batch._replace(record={"action": tf.constant(action)}, reward=tf.constant(reward))


@pytest.mark.parametrize("memory", [{}, {"lstm_size": 5, "burn_in": 2}])
def test_what_stands_at_no_transition_changes_nothing(memory: dict[str, int]) -> None:
    clean, other = build(n_step=3, **memory), build(n_step=3, **memory)
    batch = samples.rollout(clean.policy, samples.spec(), length=7, batch=5)
    last = (batch.terminated | batch.truncated).numpy()
    assert last[2:-1].any()

    one, two = clean.update(batch, START), other.update(corrupted(batch, last), START)

    np.testing.assert_array_equal(one[PRIORITIES], two[PRIORITIES])
    for a, b in zip(clean.policy.variables, other.policy.variables, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_burn_in_has_no_loss() -> None:
    chosen = {"lstm_size": 5, "burn_in": 3, "n_step": 2}
    agent = build(**chosen)
    batch = samples.rollout(agent.policy, samples.spec(), length=7, batch=4, end=0.0)
    reward = np.asarray(batch.reward).copy()
    reward[:4] = np.nan
    outputs = agent.losses(batch._replace(reward=tf.constant(reward)))
    assert np.isfinite(outputs["loss"])
    np.testing.assert_array_equal(outputs[PRIORITIES], agent.losses(batch)[PRIORITIES])
    reward[4] += 1
    changed = agent.losses(batch._replace(reward=tf.constant(reward)))
    assert float(changed["loss"]) != float(outputs["loss"])


def test_importance_weights_weigh_the_sequences() -> None:
    agent = build()
    batch = samples.rollout(agent.policy, samples.spec(), length=5, batch=2, end=0.0)

    def loss(*weight: float) -> float:
        return float(agent.losses(batch._replace(weight=tf.constant(weight, tf.float32)))["loss"])

    assert loss(0.5, 0.25) == pytest.approx(0.5 * loss(1, 0) + 0.25 * loss(0, 1), rel=1e-5)
    np.testing.assert_array_equal(
        agent.losses(batch)[PRIORITIES],
        agent.losses(batch._replace(weight=tf.constant([0.5, 0.25])))[PRIORITIES],
    )


def test_a_batch_without_transitions_is_harmless() -> None:
    agent = build()
    batch = samples.rollout(agent.policy, samples.spec(), end=1.0)
    before = [v.numpy() for v in agent.policy.variables]
    outputs = agent.update(batch, START)
    assert float(outputs["loss"]) == float(outputs["gradient_norm"]) == 0
    assert outputs[PRIORITIES].numpy().tolist() == [0.0] * 3
    for a, b in zip(before, agent.policy.variables, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_target_network_follows_every_so_many_updates() -> None:
    agent = build(target_period=3)
    same = []
    for seed in range(7):
        agent.update(samples.rollout(agent.policy, samples.spec(), seed=seed, end=0.0), START)
        pairs = zip(agent.policy.variables, agent._target.variables, strict=True)
        same.append(all(np.array_equal(a, b) for a, b in pairs))
    assert same == [False, False, True, False, False, True, False]


@pytest.mark.parametrize("memory", [{}, {"lstm_size": 8, "burn_in": 2}])
def test_the_rewarded_action_becomes_the_best(memory: dict[str, int]) -> None:
    agent = build(
        learning_rate=0.01, discount=0.5, epsilon=1.0, epsilon_environments=1, target_period=10,
        optimizer_epsilon=1e-5, **memory,
    )  # fmt: skip
    update = tf.function(agent.update)
    batches = [
        samples.rollout(agent.policy, samples.spec(), length=6, batch=16, seed=seed, end=0.1)
        for seed in range(5)
    ]
    for turn in range(150):
        batch = batches[turn % 5]
        rewarded = tf.cast(batch.record["action"] == 1, tf.float32)
        update(batch._replace(reward=tf.concat([tf.zeros((1, 16)), rewarded[:-1]], 0)), START)

    batch = samples.rollout(agent.policy, samples.spec(), length=6, batch=16, seed=99, end=0.0)
    assert np.mean(agent.policy.q_values(batch).numpy().argmax(-1) == 1) > 0.9


def test_traces_once() -> None:
    agent = build(lstm_size=4, burn_in=2)
    traces = []

    @tf.function
    def update(batch: Batch) -> Any:
        traces.append(batch)
        return agent.update(batch, START)

    for seed in range(3):
        update(samples.rollout(agent.policy, samples.spec(), seed=seed))
    assert len(traces) == 1


def test_variables_restore_an_agent() -> None:
    chosen = {"lstm_size": 4, "frame_stack": 2, "target_period": 2}
    environment = samples.spec(samples.IMAGE)
    agent, other = build(environment, **chosen), build(environment, seed=2, **chosen)
    batch = samples.rollout(agent.policy, environment, length=2, batch=2)
    agent.update(batch, START)
    assert list(agent.variables) == list(other.variables)
    assert {"updates", "target/head/value/output/kernel", "optimizer/skipped_updates"} <= set(
        agent.variables
    )

    for name, variable in agent.variables.items():
        other.variables[name].assign(variable)
    agent.update(batch, START)
    other.update(batch, START)

    for name, variable in agent.variables.items():
        np.testing.assert_array_equal(variable, other.variables[name], err_msg=name)


def test_make_policy_makes_variables_of_its_own() -> None:
    agent = build()
    copy = agent.make_policy()
    agent.update(samples.rollout(agent.policy, samples.spec(), end=0.0), START)
    pairs = zip(copy.variables, agent.policy.variables, strict=True)
    assert all(mine is not trained for mine, trained in pairs)
    assert not np.array_equal(copy.variables[0], agent.policy.variables[0])
