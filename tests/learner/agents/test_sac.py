"""Soft actor-critic: its masks, its steps, how it explores, and that it learns."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

from learner.agent_options import AgentOptions
from learner.agents.agent import PRIORITIES
from learner.experience.trajectory import Batch
from protos.errors import ConfigError
from tests.learner.agents import samples
from tests.learner.agents.sac_samples import BOX, DESCENT, DISCRETE, arrays, build, windows

START = tf.constant(0.0)


@pytest.mark.parametrize("action", [BOX, DISCRETE])
def test_what_stands_at_no_transition_changes_nothing(action: spaces.Space[Any]) -> None:
    environment = samples.spec(action=action)
    clean, other = build(environment), build(environment)
    batch = windows(clean, environment)
    last = (batch.terminated | batch.truncated).numpy()[0]
    assert last.any()
    reward, recorded = batch.reward.numpy(), batch.record["action"].numpy()
    reward[0], reward[1][last] = np.nan, np.nan
    recorded[0][last] = np.nan if recorded.dtype.kind == "f" else 1 - recorded[0][last]
    recorded[1] = 0

    clean.update(batch, START)
    changed = {"reward": tf.constant(reward), "record": {"action": tf.constant(recorded)}}
    other.update(batch._replace(**changed), START)

    assert np.isfinite(np.concatenate([v.ravel() for v in arrays(other).values()])).all()
    for name, value in arrays(clean).items():
        np.testing.assert_array_equal(value, arrays(other)[name], err_msg=name)


def test_a_truncation_bootstraps_and_a_termination_does_not() -> None:
    environment = samples.spec(action=BOX)
    agent = build(environment)
    batch = windows(agent, environment, end=0.0)
    seed = tf.constant([1, 2])
    end = np.zeros(batch.first.shape, bool)
    end[1] = True

    going, terminated, truncated = (
        agent.critic_targets(agent.transitions(batch._replace(**flags)), seed).numpy()
        for flags in ({}, {"terminated": tf.constant(end)}, {"truncated": tf.constant(end)})
    )

    np.testing.assert_array_equal(going, truncated)
    np.testing.assert_array_equal(terminated, batch.reward[1])
    assert (going != terminated).all()


def test_a_batch_without_transitions_is_harmless() -> None:
    environment = samples.spec(action=BOX)
    agent = build(environment)
    batch = windows(agent, environment, end=1.0)
    before = arrays(agent)

    outputs = agent.update(batch, START)

    assert float(outputs["loss"]) == float(outputs["gradient_norm"]) == 0
    after = arrays(agent)
    for name in before:
        if name.startswith(("policy/dense", "critics/", "targets/", "log_alpha")):
            np.testing.assert_array_equal(after[name], before[name], err_msg=name)


def test_a_batch_of_nan_is_skipped_and_counted() -> None:
    environment = samples.spec(action=BOX)
    agent = build(environment)
    batch = windows(agent, environment, end=0.0)
    before = arrays(agent)

    outputs = agent.update(batch._replace(reward=batch.reward * np.nan), START)

    assert int(outputs["skipped_updates"]) == 1
    after = arrays(agent)
    for name in before:
        if name.startswith(("policy/dense", "critics/", "targets/", "log_alpha")):
            np.testing.assert_array_equal(after[name], before[name], err_msg=name)


def part(batch: Batch, columns: slice) -> Batch:
    rows = batch._replace(weight=batch.weight[None])
    cut: Batch = tf.nest.map_structure(lambda x: x[:, columns], rows)
    return cut._replace(weight=cut.weight[0])


@pytest.mark.parametrize("action", [BOX, DISCRETE])
def test_gradient_steps_are_updates_one_after_the_other(action: spaces.Space[Any]) -> None:
    environment = samples.spec(action=action)
    options = {"priority_exponent": 0.5, "normalize_observations": False}
    at_once, stepwise = (
        build(environment, gradient_steps=3, batch_size=12, **options),
        build(environment, **options),
    )
    batch = windows(at_once, environment)
    parts = [part(batch, slice(i, i + 4)) for i in (0, 4, 8)]

    found = tf.function(at_once.update)(batch, START)
    each = [stepwise.update(part, START) for part in parts]

    for name, value in arrays(at_once).items():
        np.testing.assert_allclose(value, arrays(stepwise)[name], rtol=1e-4, atol=1e-5, err_msg=name)
    priorities = np.concatenate([one[PRIORITIES] for one in each])
    np.testing.assert_allclose(found[PRIORITIES], priorities, rtol=1e-4, atol=1e-5)
    assert float(found["loss"]) == pytest.approx(np.mean([one["loss"] for one in each]), rel=1e-3)


def test_uniform_replay_gets_no_priorities() -> None:
    environment = samples.spec(action=BOX)
    agent = build(environment)
    assert PRIORITIES not in agent.update(windows(agent, environment), START)


def test_learning_rates_are_each_network_s_own() -> None:
    environment = samples.spec(action=BOX)
    rates = {"learning_rate": 0.5, "critic_learning_rate": 0.25, "temperature_learning_rate": 0.0}
    slow = build(environment, **{**DESCENT, **rates})
    fast = build(environment, **DESCENT)
    batch = windows(fast, environment)
    before = arrays(fast)

    slow.update(batch, START)
    fast.update(batch, START)

    for name, part in (
        ("policy/dense_0/kernel", 0.5),
        ("critics/dense_0/kernel", 0.25),
        ("log_alpha", 0),
    ):
        steps = [arrays(agent)[name] - before[name] for agent in (slow, fast)]
        assert np.abs(steps[1]).max() > 0
        np.testing.assert_allclose(steps[0], part * steps[1], rtol=1e-3, atol=1e-6, err_msg=name)


def test_the_temperature_keeps_the_entropy_at_its_target() -> None:
    environment = samples.spec(action=DISCRETE)
    low, high = (build(environment, target_entropy=target) for target in (0.1, 1.09))
    batch = windows(low, environment)
    for agent in (low, high):
        agent.update(batch, START)
    # A new policy's entropy is near log 3 = 1.0986: above both, but hardly above one.
    assert float(arrays(low)["log_alpha"]) < 0
    far, near = (build(environment, **{**DESCENT, "target_entropy": target}) for target in (0.1, 2.0))
    far.update(batch, START)
    near.update(batch, START)
    assert float(arrays(far)["log_alpha"]) == pytest.approx(0.1 - np.log(3), abs=0.01)
    assert float(arrays(near)["log_alpha"]) == pytest.approx(2.0 - np.log(3), abs=0.01)


@pytest.mark.parametrize("action", [BOX, DISCRETE])
def test_it_acts_at_random_until_it_has_learned(action: spaces.Space[Any]) -> None:
    environment = samples.spec(action=action)
    agent = build(environment)
    # A policy that is sure of itself.
    bias = np.zeros(agent.policy.trainable["dense_1/bias"].shape)
    bias[..., 0], bias[..., 2:] = 20, -20
    agent.policy.trainable["dense_1/bias"].assign(bias)
    row = [np.zeros((500, 4), np.float32)]

    def spread(greedy: bool) -> float:
        outputs, _ = samples.act(agent.policy, row, {}, greedy=greedy)
        return float(np.std(outputs.record["action"].numpy().reshape(500, -1)[:, 0]))

    assert spread(greedy=False) > 0.5
    assert spread(greedy=True) == 0
    agent.update(windows(agent, environment), START)
    assert spread(greedy=False) < 0.05
    assert bool(agent.make_policy().variables[-1]), "a new copy knows nothing until it is published to"


@pytest.mark.parametrize(
    "action", [spaces.Discrete(4, start=3), BOX, spaces.Box(-1, 3, (2, 1), np.float64)]
)
@pytest.mark.parametrize("greedy", [False, True])
def test_actions_lie_in_the_space(action: spaces.Space[Any], greedy: bool) -> None:
    environment = samples.spec(action=action)
    agent = build(environment)
    row = samples.draw_leaf(environment.observation[0], (50,), np.random.default_rng(0))
    for _ in range(2):
        outputs, _ = samples.act(agent.policy, [row], {}, greedy=greedy)
        assert outputs.action.numpy().dtype == environment.action.dtype
        assert all(action.contains(a) for a in outputs.action.numpy().astype(action.dtype))
        agent.policy.trained()


def test_observations_are_normalised_by_what_was_replayed() -> None:
    environment = samples.spec(action=BOX)
    agent, copy = (build(environment, normalize_observations=True) for _ in range(2))
    batch = windows(agent, environment, end=0.0, batch=400)
    scaled = batch._replace(observation=(batch.observation[0] * 5 + 100,))

    agent.update(scaled, START)
    agent.update(scaled, START)

    read = agent.policy.read([scaled.observation[0][0]]).numpy()
    np.testing.assert_allclose(read.mean(0), 0, atol=0.01)
    np.testing.assert_allclose(read.std(0), 1, atol=0.01)
    for mine, theirs in zip(copy.policy.variables, agent.policy.variables, strict=True):
        mine.assign(theirs)
    np.testing.assert_array_equal(copy.policy.read([scaled.observation[0][0]]), read)


def test_a_box_policy_finds_the_rewarded_place() -> None:
    environment = samples.spec(action=spaces.Box(-2, 2, (1,), np.float32))
    agent = build(
        environment, hidden_sizes=(16,), learning_rate=0.01, critic_learning_rate=0.02,
        temperature_learning_rate=0.01, learning_rate_schedule="constant", discount=0.0,
    )  # fmt: skip
    update = tf.function(agent.update)
    for seed in range(300):
        batch = samples.rollout(agent.policy, environment, length=1, batch=32, seed=seed, end=0.0)
        distance = tf.abs(batch.record["action"][..., 0] - 0.5)
        update(batch._replace(reward=tf.concat([tf.zeros((1, 32)), -distance[:-1]], 0)), START)

    outputs, _ = samples.act(agent.policy, [np.zeros((1, 4), np.float32)], {}, greedy=True)
    assert float(outputs.action[0, 0]) == pytest.approx(1.0, abs=0.4)  # 0.5 of the way to 2.


def test_a_rewarded_action_becomes_likely() -> None:
    environment = samples.spec(action=DISCRETE)
    agent = build(
        environment, learning_rate=0.01, critic_learning_rate=0.02, temperature_learning_rate=0.01,
        learning_rate_schedule="constant", target_entropy=0.3,
    )  # fmt: skip
    update = tf.function(agent.update)
    for seed in range(200):
        batch = samples.rollout(agent.policy, environment, length=1, batch=32, seed=seed, end=0.0)
        rewarded = tf.cast(batch.record["action"] == 1, tf.float32)
        terminated = tf.constant(np.array([[False] * 32, [True] * 32]))
        reward = tf.concat([tf.zeros((1, 32)), rewarded[:-1]], 0)
        update(batch._replace(reward=reward, terminated=terminated), START)

    batch = samples.rollout(agent.policy, environment, length=20, batch=8, seed=99, end=0.0)
    assert np.mean(batch.record["action"].numpy() == 1) > 0.7


def test_traces_once() -> None:
    environment = samples.spec(action=BOX)
    agent = build(environment, gradient_steps=2)
    traces = []

    @tf.function
    def update(batch: Batch) -> Any:
        traces.append(batch)
        return agent.update(batch, START)

    for seed in range(3):
        update(windows(agent, environment, seed=seed))

    assert len(traces) == 1


@pytest.mark.parametrize("action", [BOX, DISCRETE])
def test_variables_restore_an_agent(action: spaces.Space[Any]) -> None:
    environment = samples.spec(action=action)
    options: dict[str, Any] = {"normalize_observations": True}
    agent, other = build(environment, **options), build(environment, seed=1, **options)
    batch = windows(agent, environment)
    agent.update(batch, START)
    assert list(agent.variables) == list(other.variables)

    for name, variable in agent.variables.items():
        other.variables[name].assign(variable)
    agent.update(batch, START)
    other.update(batch, START)

    for name, variable in agent.variables.items():
        np.testing.assert_array_equal(variable, other.variables[name], err_msg=name)


def test_variables_have_readable_names() -> None:
    names = list(build(samples.spec(action=BOX)).variables)
    assert {
        "policy/dense_0/kernel", "policy/at_random", "critics/dense_1/bias", "targets/dense_1/bias",
        "log_alpha", "gradient_steps", "optimizer/critic/slot_000", "optimizer/policy/skipped_updates",
    } <= set(names)  # fmt: skip


def test_make_policy_makes_variables_of_its_own() -> None:
    environment = samples.spec(action=BOX)
    agent = build(environment)
    copy = agent.make_policy()
    for mine, trained in zip(copy.variables, agent.policy.variables, strict=True):
        np.testing.assert_array_equal(mine, trained)
        assert mine is not trained


def test_images_need_another_agent_or_to_be_flattened() -> None:
    environment = samples.spec(samples.IMAGE, BOX)
    with pytest.raises(ConfigError, match=r"reads observations by an MLP.*say --torso mlp to flatten"):
        build(environment)
    assert build(environment, torso="mlp").policy.trainable["dense_0/kernel"].shape[1] == 24 * 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lstm_size": 4}, r"--lstm-size gives the policy a memory, and --agent sac replays single"),
        ({"frame_stack": 4}, r"--frame-stack gives the policy a memory"),
        ({"torso": "deep"}, r"--torso deep is one of convolutions, and --agent sac reads"),
        (
            {"gradient_steps": 3, "batch_size": 8},
            r"--gradient-steps 3: expected a divisor of --batch-size 8",
        ),
        ({"entropy_cost": 0.5}, r"--entropy-cost is an option of vtrace and ppo and a2c"),
    ],
)
def test_options_that_are_none_of_sac_s_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AgentOptions(agent="sac", **options)
