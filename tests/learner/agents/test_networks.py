"""Networks: the same features by step and by unroll, and the options that they refuse."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

from learner.agent_options import AgentOptions
from learner.agents.actor_critic import ActorCriticPolicy
from learner.agents.layers import Lstm
from learner.agents.networks import Network, choose_torso
from learner.agents.torsos import channels_first, image_size, vector
from protos.errors import ConfigError
from protos.specs import from_spaces
from tests.learner.agents import samples

MIXED = spaces.Dict(
    {
        "camera": samples.IMAGE,
        "speed": spaces.Box(-np.inf, np.inf, (2,), np.float64),
        "gear": spaces.Discrete(3, start=-1),
        "buttons": spaces.MultiBinary(2),
    }
)
CASES: dict[str, tuple[spaces.Space[Any], dict[str, Any]]] = {
    "vector": (samples.VECTOR, {}),
    "vector, lstm": (samples.VECTOR, {"lstm_size": 5}),
    "image, stacked": (samples.IMAGE, {"frame_stack": 4}),
    "image, stacked, lstm": (samples.IMAGE, {"frame_stack": 3, "lstm_size": 4}),
    "image, mlp": (samples.IMAGE, {"frame_stack": 2, "torso": "mlp"}),
    "image, deep": (samples.IMAGE, {"frame_stack": 2, "torso": "deep"}),
    "mixed": (MIXED, {"frame_stack": 4, "lstm_size": 3, "hidden_sizes": (8,)}),
}


@pytest.mark.parametrize("case", CASES)
def test_unroll_equals_acting_step_by_step(case: str) -> None:
    observation, options = CASES[case]
    spec = samples.spec(observation)
    policy = ActorCriticPolicy(spec, AgentOptions(**options), seed=1, records_values=True)
    batch = samples.rollout(policy, spec, length=7, batch=3)
    assert batch.first.numpy()[1:].any()

    evaluation = policy.evaluate(batch)

    log_prob = policy.distribution.log_prob(evaluation.parameters, batch.record["action"])
    np.testing.assert_allclose(evaluation.values, batch.record["value"], rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(log_prob, batch.record["log_prob"], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("case", ["vector, lstm", "image, stacked, lstm", "mixed"])
def test_the_memory_after_an_unroll_equals_that_of_acting(case: str) -> None:
    observation, options = CASES[case]
    spec = samples.spec(observation)
    network = Network(spec.observation, AgentOptions(**options), np.random.default_rng(0), heads=2)
    rng = np.random.default_rng(1)
    leaves = [samples.draw_leaf(leaf, (6, 4), rng) for leaf in spec.observation]
    first = rng.random((6, 4)) < 0.3
    zeros = {
        name: np.zeros((4, *entry.shape), entry.dtype.as_numpy_dtype)
        for name, entry in network.state_specs.items()
    }

    _, after = network.unroll(tuple(map(tf.constant, leaves)), tf.constant(first), zeros)

    state = zeros
    for t in range(6):
        state = {name: samples.zeroed(np.asarray(value), first[t]) for name, value in state.items()}
        _, state = network.step([tf.constant(leaf[t]) for leaf in leaves], state)
    assert after.keys() == state.keys() == network.state_specs.keys()
    for name, value in after.items():
        np.testing.assert_allclose(value, state[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("case", ["vector, lstm", "image, stacked"])
def test_nothing_passes_from_one_episode_to_the_next(case: str) -> None:
    observation, options = CASES[case]
    spec = samples.spec(observation)
    policy = ActorCriticPolicy(spec, AgentOptions(**options), seed=1)
    batch = samples.rollout(policy, spec, length=5, batch=2, end=0.0)
    first = np.zeros((6, 2), bool)
    first[3, 0] = True
    batch = batch._replace(first=tf.constant(first))

    changed = batch.observation[0].numpy()
    changed[2] = samples.draw_leaf(spec.observation[0], (2,), np.random.default_rng(9))
    before = policy.evaluate(batch).values.numpy()
    after = policy.evaluate(batch._replace(observation=(tf.constant(changed),))).values.numpy()

    np.testing.assert_array_equal(before[3:, 0], after[3:, 0])
    assert (before[3:, 1] != after[3:, 1]).all()  # The other environment's episode goes on.


def test_the_lstm_equals_keras() -> None:
    lstm = Lstm(3, 4, np.random.default_rng(0))
    x, h, c = (tf.random.stateless_normal(shape, (1, 2)) for shape in ((2, 3), (2, 4), (2, 4)))

    found = lstm.step(x, h, c)

    truth, _ = lstm._cell(x, [h, c])
    np.testing.assert_allclose(found[0], truth, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(lstm.variables["bias"].numpy(), [0] * 4 + [1] * 4 + [0] * 8)


def test_leaves_become_vectors() -> None:
    leaves = {leaf.name: leaf for leaf in from_spaces(MIXED, samples.DISCRETE).observation}
    ram = from_spaces(spaces.Box(0, 255, (2,), np.uint8), samples.DISCRETE).observation[0]

    gear = vector(leaves["gear"], tf.constant([-1, 1], tf.int64))
    buttons = vector(leaves["buttons"], tf.constant([[0, 1]], tf.int8))
    scaled = vector(ram, tf.constant([[0, 255]], tf.uint8))

    np.testing.assert_array_equal(gear, [[1, 0, 0], [0, 0, 1]])
    np.testing.assert_array_equal(buttons, [[0, 1]])
    np.testing.assert_allclose(scaled, [[0, 1]])


@pytest.mark.parametrize("torso", ["shallow", "deep"])
def test_an_image_may_have_its_channels_first(torso: Any) -> None:
    shapes: list[tuple[int, int, int]] = [(24, 20, 3), (3, 24, 20)]
    last, first = (spaces.Box(0, 255, shape, np.uint8) for shape in shapes)
    options = AgentOptions(torso=torso, frame_stack=2)
    by_last, by_first = (
        Network(samples.spec(space).observation, options, np.random.default_rng(0))
        for space in (last, first)
    )
    images = np.random.default_rng(1).integers(0, 256, (2, 24, 20, 3), np.uint8)
    past = images[:, None][:, :, ::-1]

    (expected,), _ = by_last.step([tf.constant(images)], {"frames_0": tf.constant(past)})
    (found,), _ = by_first.step(
        [tf.constant(images.transpose(0, 3, 1, 2))],
        {"frames_0": tf.constant(past.transpose(0, 1, 4, 2, 3))},
    )

    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_which_dimension_is_the_channels() -> None:
    assert [channels_first(s) for s in [(1, 84, 84), (84, 84, 1), (3, 7, 7), (7, 7, 3)]] == [
        True, False, True, False,
    ]  # fmt: skip
    assert image_size((3, 24, 20)) == image_size((24, 20, 3)) == (24, 20, 3)


def test_the_same_seed_gives_the_same_weights() -> None:
    spec = samples.spec(samples.IMAGE)
    options = AgentOptions(lstm_size=4)
    one, same, other = (ActorCriticPolicy(spec, options, seed) for seed in (1, 1, 2))

    for a, b in zip(one.variables, same.variables, strict=True):
        np.testing.assert_array_equal(a, b)
    kernels = [name for name in one.trainable if name.endswith("kernel")]
    for name in kernels:
        assert not np.array_equal(one.trainable[name].numpy(), other.trainable[name].numpy()), name


def test_no_two_layers_start_alike() -> None:
    policy = ActorCriticPolicy(samples.spec(), AgentOptions(hidden_sizes=(4, 4, 4)), seed=1)

    kernels = [v.numpy() for name, v in policy.trainable.items() if "mlp" in name and "kernel" in name]

    assert len(kernels) == 6  # Three of the policy's tower, three of the value's.
    assert len({kernel.tobytes() for kernel in kernels}) == 6


@pytest.mark.parametrize(("observation", "shared"), [(samples.VECTOR, False), (samples.IMAGE, True)])
def test_heads_share_convolutions_only(observation: spaces.Space[Any], shared: bool) -> None:
    spec = samples.spec(observation)
    network = Network(spec.observation, AgentOptions(), np.random.default_rng(0), heads=2)
    row = samples.draw_leaf(spec.observation[0], (3,), np.random.default_rng(1))

    (one, other), _ = network.step([tf.constant(row)], {})

    assert np.array_equal(one, other) == shared


@pytest.mark.parametrize(
    ("observation", "options", "message"),
    [
        (samples.VECTOR, {"frame_stack": 4}, r"stacks images \(uint8 .*float32\[4\].* say --f"),
        (samples.VECTOR, {"torso": "deep"}, r"--torso deep needs an image .*float32.* say --torso mlp"),
        (
            spaces.Box(0, 255, (7, 7, 3), np.uint8),
            {},
            r"--torso shallow needs images of at least 20 x 20 .*\[7,7,3\].* say --torso deep",
        ),
    ],
)
def test_refuses_options_that_do_not_fit(
    observation: spaces.Space[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_torso(samples.spec(observation).observation, AgentOptions(**options))


def test_the_least_image_of_the_shallow_torso() -> None:
    spec = samples.spec(spaces.Box(0, 255, (20, 20, 1), np.uint8))
    network = Network(spec.observation, AgentOptions(), np.random.default_rng(0))

    (features,), _ = network.step([tf.zeros((2, 20, 20, 1), tf.uint8)], {})

    assert features.shape == (2, 256)


def test_auto_chooses_by_the_observation() -> None:
    assert choose_torso(samples.spec(samples.IMAGE).observation, AgentOptions()) == "shallow"
    assert choose_torso(samples.spec(samples.VECTOR).observation, AgentOptions()) == "mlp"
    assert choose_torso(samples.spec(MIXED).observation, AgentOptions(torso="mlp")) == "mlp"


def test_lstm_remembers_over_its_horizon_at_first() -> None:
    plain, far = (Lstm(3, 400, np.random.default_rng(0), horizon=h) for h in (0, 40))
    forget = far.variables["bias"].numpy()[400:800]
    np.testing.assert_array_equal(plain.variables["bias"].numpy()[400:800], 1)
    assert np.exp(forget).min() >= 1
    assert np.exp(forget).max() <= 39
    assert np.exp(forget).mean() == pytest.approx(20, abs=2)
    assert not np.delete(far.variables["bias"].numpy(), np.s_[400:800]).any()
