"""Policies of every agent, computed by NumPy and by TensorFlow: both say the same."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

from learner.agent_options import AgentOptions
from learner.agents.build import make_agent
from learner.serving.batcher import InferenceBatch, Request
from learner.serving.policy_call import PolicyAnswer, PolicyFunction
from learner.training.weights import PublishedWeights, variable_copier
from protos import inference_pb2 as pb
from protos.errors import ConfigError
from protos.specs import EnvironmentSpec, from_spaces
from tests.learner.agents.samples import draw_leaf

SLOTS = 8
VECTOR = spaces.Box(-1, 1, (3,), np.float32)
LEAVES = spaces.Dict(
    {
        "door": spaces.Discrete(4, start=2),
        "doors": spaces.MultiDiscrete([2, 3]),
        "flags": spaces.MultiBinary(3),
        "grid": spaces.Box(0, 255, (2, 3), np.uint8),
        "count": spaces.Box(-9, 9, (2,), np.int32),
        "wide": spaces.Box(-np.inf, np.inf, (), np.float64),
        "position": VECTOR,
    }
)
SMALL_IMAGE = spaces.Dict({"image": spaces.Box(0, 255, (4, 4, 1), np.uint8), "position": VECTOR})
IMAGE = spaces.Box(0, 255, (24, 20, 1), np.uint8)

DISCRETE = spaces.Discrete(3, start=-1)
MULTI = spaces.MultiDiscrete([2, 4, 3])
BOX = spaces.Box(np.array([-1, 0], np.float32), np.array([3, 0.5], np.float32))
UNBOUNDED = spaces.Box(-np.inf, np.inf, (2, 1), np.float64)

NORMALIZED = {"normalize_observations": True, "normalize_rewards": True}
BOUNDED = {"policy_mean": "tanh", "policy_std": "softplus"}
STACKED = {"torso": "mlp", "frame_stack": 3}

# (agent, options, observation, action)
POLICIES: list[tuple[str, dict[str, Any], spaces.Space[Any], spaces.Space[Any]]] = [
    ("vtrace", {}, VECTOR, DISCRETE),
    ("vtrace", {"activation": "relu6"}, VECTOR, DISCRETE),
    ("vtrace", {"lstm_size": 8}, LEAVES, DISCRETE),
    ("vtrace", {"value_hidden_sizes": (5,), "activation": "relu"}, LEAVES, MULTI),
    ("vtrace", STACKED, SMALL_IMAGE, DISCRETE),
    ("vtrace", {**STACKED, "lstm_size": 8}, SMALL_IMAGE, MULTI),
    ("ppo", NORMALIZED, LEAVES, DISCRETE),
    ("ppo", {**NORMALIZED, "lstm_size": 8}, VECTOR, MULTI),
    ("ppo", {**NORMALIZED, "policy_mean": "tanh"}, LEAVES, BOX),
    ("a2c", {}, LEAVES, UNBOUNDED),
    ("a2c", {**BOUNDED, "lstm_size": 8}, VECTOR, BOX),
    ("a2c", {**BOUNDED, "normalize_rewards": True, "reward_clip": 0.5}, VECTOR, UNBOUNDED),
    ("a2c", {"policy_std": "softplus"}, VECTOR, BOX),
    ("r2d2", {"eval_epsilon": 0.0}, LEAVES, DISCRETE),
    ("r2d2", {"eval_epsilon": 0.0, "lstm_size": 8}, VECTOR, DISCRETE),
    ("r2d2", {"eval_epsilon": 0.0, **STACKED}, SMALL_IMAGE, DISCRETE),
    ("sac", {}, LEAVES, DISCRETE),
    ("sac", {"normalize_observations": True}, VECTOR, BOX),
]
ACTOR_CRITICS = [each for each in POLICIES if each[0] in ("vtrace", "ppo", "a2c")]


def make_policy(
    agent: str, options: dict[str, Any], spec: EnvironmentSpec, seed: int = 3, scale: float = 0.2
) -> Any:
    """A copy that acts, with weights as if it had learned."""
    policy = make_agent(AgentOptions(agent=agent, **options), spec, seed=seed).make_policy()  # type: ignore[arg-type]
    rng = np.random.default_rng(seed)
    for variable in policy.variables:
        if variable.dtype == tf.float32:
            variable.assign_add(rng.uniform(0, scale, variable.shape))
    return policy


def make_function(policy: Any, spec: EnvironmentSpec, engine: str, **options: Any) -> PolicyFunction:
    arguments = {"num_slots": SLOTS, "max_rows": SLOTS, "seed": 11, **options}
    return PolicyFunction(policy, spec.observation, engine=engine, **arguments)  # type: ignore[arg-type]


def batches(spec: EnvironmentSpec, seed: int = 0) -> list[InferenceBatch]:
    """Successive ones, of environments in any order, some of which start afresh."""
    rng = np.random.default_rng(seed)
    found = []
    for slots in ([0, 1, 2, 3, 4], [4, 2, 0], [7, 1, 3, 2, 0, 5, 6, 4], [3], [2, 6, 5]):
        batch = InferenceBatch(spec.observation, SLOTS, SLOTS)
        batch.add(
            Request(
                slots=np.array(slots, np.int32),
                observation=[draw_leaf(leaf, (len(slots),), rng) for leaf in spec.observation],
                reward=rng.normal(size=len(slots)).astype(np.float32),
                flags=np.where(rng.random(len(slots)) < 0.3, pb.FIRST, 0).astype(np.uint8),
                reply=lambda actions, version: None,
            )
        )
        found.append(batch)
    return found


def same_rows(spec: EnvironmentSpec, rows: int) -> InferenceBatch:
    """One observation in all of them."""
    rng = np.random.default_rng(5)
    batch = InferenceBatch(spec.observation, rows, rows)
    for buffer, leaf in zip(batch.observation, spec.observation, strict=True):
        buffer[:] = draw_leaf(leaf, (), rng)
    batch.slots[:], batch.size = np.arange(rows), rows
    return batch


def memory(answer: PolicyAnswer, rows: int) -> dict[str, np.ndarray]:
    return {name: np.asarray(x) for name, x in answer.state_before(np.arange(rows)).items()}


def evaluated(policy: Any, batch: InferenceBatch, state: dict[str, np.ndarray]) -> Any:
    """What TensorFlow's policy says about a batch: parameters and values of its rows."""
    rows = SimpleNamespace(
        observation=tuple(tf.constant(leaf[None, : batch.size]) for leaf in batch.observation),
        first=tf.zeros((1, batch.size), tf.bool),
        initial_state={name: tf.constant(value) for name, value in state.items()},
    )
    return policy.evaluate(rows)


def assert_close(found: Any, expected: Any) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, 1e-4, 1e-4)


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize(("agent", "options", "observation", "action"), POLICIES)
def test_both_say_the_same(
    agent: str, options: dict[str, Any], observation: Any, action: Any, greedy: bool
) -> None:
    spec = from_spaces(observation, action)
    policy = make_policy(agent, options, spec)
    numpy = make_function(policy, spec, "numpy", greedy=greedy)
    tensorflow = make_function(policy, spec, "tensorflow", greedy=greedy)
    assert (numpy.by_numpy, tensorflow.by_numpy) == (True, False)
    assert numpy.layout == tensorflow.layout
    # What is recorded and does not depend on the action that was drawn.
    certain = set(numpy.layout.record) - (set() if greedy else {"action", "log_prob"})
    for batch in batches(spec):
        found, expected = numpy(batch), tensorflow(batch)
        assert found.record.keys() == expected.record.keys() == numpy.layout.record.keys()
        for name in certain:
            assert_close(found.record[name], expected.record[name])
        assert found.action.dtype == expected.action.dtype
        assert found.action.shape == expected.action.shape
        if greedy:
            assert_close(found.action, expected.action)
        state, same = (memory(answer, batch.size) for answer in (found, expected))
        assert state.keys() == same.keys()
        for name, value in same.items():
            assert_close(state[name], value)


@pytest.mark.parametrize(("agent", "options", "observation", "action"), ACTOR_CRITICS)
def test_samples_are_recorded_with_the_log_probability_that_tensorflow_gives_them(
    agent: str, options: dict[str, Any], observation: Any, action: Any
) -> None:
    spec = from_spaces(observation, action)
    policy = make_policy(agent, options, spec)
    numpy = make_function(policy, spec, "numpy")
    for batch in batches(spec):
        found = numpy(batch)
        parameters, values = evaluated(policy, batch, memory(found, batch.size))
        chosen = found.record["action"]
        expected = policy.distribution.log_prob(parameters[0], tf.constant(chosen)).numpy()
        np.testing.assert_allclose(found.record["log_prob"], expected, 1e-4, 1e-4)
        if agent == "ppo":
            np.testing.assert_allclose(found.record["value"], values[0].numpy(), 1e-4, 1e-4)
        sent = policy.distribution.to_environment(tf.constant(chosen)).numpy()
        np.testing.assert_allclose(found.action, sent, 1e-6)


# Samples ----------------------------------------------------------------------------------------

MANY = 20_000


def many(policy: Any, spec: EnvironmentSpec) -> tuple[InferenceBatch, PolicyAnswer]:
    """A batch of many environments that show the same."""
    batch = same_rows(spec, MANY)
    return batch, make_function(policy, spec, "numpy", num_slots=MANY, max_rows=MANY)(batch)


@pytest.mark.parametrize("action", [DISCRETE, MULTI])
def test_actions_are_as_frequent_as_they_are_probable(action: Any) -> None:
    spec = from_spaces(VECTOR, action)
    policy = make_policy("vtrace", {}, spec, scale=0.5)
    batch, found = many(policy, spec)
    batch.size = 1
    logits = evaluated(policy, batch, {}).parameters[0, 0].numpy()
    counts = spec.action.num_categories.reshape(-1)
    logits = logits.reshape(len(counts), -1)
    chosen = found.record["action"].reshape(MANY, -1)
    for i, count in enumerate(counts):
        probabilities = tf.nn.softmax(logits[i, :count]).numpy()
        frequencies = np.bincount(chosen[:, i], minlength=count) / MANY
        np.testing.assert_allclose(frequencies, probabilities, atol=0.02)
        assert probabilities.std() > 0.02  # else anything would pass


@pytest.mark.parametrize("options", [{}, {"policy_mean": "tanh"}, {"policy_std": "softplus"}, BOUNDED])
def test_box_actions_have_the_mean_and_the_deviation(options: dict[str, Any]) -> None:
    spec = from_spaces(VECTOR, BOX)
    policy = make_policy("ppo", options, spec)
    batch, found = many(policy, spec)
    batch.size = 1
    mean, log_std = policy.distribution._split(evaluated(policy, batch, {}).parameters[0, 0])
    chosen, std = found.record["action"], np.exp(log_std)
    np.testing.assert_allclose(chosen.mean(0, np.float64), mean, atol=4 * std.max() / np.sqrt(MANY))
    np.testing.assert_allclose(chosen.std(0), std, 0.03)
    assert (found.action >= BOX.low).all()
    assert (found.action <= BOX.high).all()


def test_q_learning_explores_as_often_as_its_ladder_says() -> None:
    spec = from_spaces(VECTOR, DISCRETE)
    policy = make_policy("r2d2", {"epsilon": 0.5, "epsilon_environments": 2}, spec)
    _, found = many(policy, spec)
    chosen = found.record["action"]
    best = np.bincount(chosen).argmax()
    for offset, epsilon in enumerate(policy._ladder):
        part = (chosen[offset :: len(policy._ladder)] != best).mean()
        assert part == pytest.approx(epsilon * 2 / 3, abs=0.02)


@pytest.mark.parametrize("action", [DISCRETE, BOX])
def test_sac_acts_at_random_until_weights_are_published(action: Any) -> None:
    spec = from_spaces(VECTOR, action)
    policy, batch = make_policy("sac", {}, spec), same_rows(spec, MANY)
    weights = PublishedWeights(lambda: None)
    function = make_function(policy, spec, "numpy", num_slots=MANY, max_rows=MANY, weights=weights)
    policy.trained()
    parameters = policy.parameters(policy.read([leaf[:1] for leaf in batch.observation]))
    if action is DISCRETE:
        uniform, learned = np.full(3, 1 / 3), tf.nn.softmax(parameters[0]).numpy()
    else:
        samples = policy.actions.sample(tf.repeat(parameters, MANY, 0), tf.constant([1, 2]))
        uniform, learned = np.zeros(2), samples.numpy().mean(0)

    def statistics() -> np.ndarray:
        chosen = function(batch).record["action"]
        return np.bincount(chosen, minlength=3) / MANY if action is DISCRETE else chosen.mean(0)

    assert np.abs(uniform - learned).max() > 0.05
    np.testing.assert_allclose(statistics(), uniform, atol=0.02)
    weights.publish(1)
    np.testing.assert_allclose(statistics(), learned, atol=0.03)


@pytest.mark.parametrize("agent", ["vtrace", "sac", "r2d2"])
def test_seeds_and_numbers_of_calls_decide_the_actions(agent: str) -> None:
    spec = from_spaces(VECTOR, DISCRETE)
    policy = make_policy(
        agent, {"epsilon_exponent": 1.0, "epsilon": 1.0} if agent == "r2d2" else {}, spec
    )

    def actions(function: PolicyFunction, calls: int) -> list[list[int]]:
        batch = same_rows(spec, 64)
        return [function(batch).action.tolist() for _ in range(calls)]

    def function(seed: int) -> PolicyFunction:
        return make_function(policy, spec, "numpy", num_slots=64, max_rows=64, seed=seed)

    first = actions(function(1), 3)
    assert len({str(each) for each in first}) == 3
    assert actions(function(1), 3) == first
    assert actions(function(2), 1) != first[:1]
    assert len(actions(function(2**31 + 5), 1)[0]) == 64
    resumed = function(1)
    resumed.number_from(2)
    assert actions(resumed, 1) == first[2:]
    resumed.warm_up(same_rows(spec, 64))
    assert resumed.calls == 3


# Where it is used -------------------------------------------------------------------------------


@pytest.mark.parametrize("torso", ["shallow", "deep"])
def test_convolutions_are_tensorflows(torso: str) -> None:
    spec = from_spaces(IMAGE, DISCRETE)
    policy = make_policy("vtrace", {"torso": torso}, spec)
    assert not make_function(policy, spec, "auto").by_numpy
    text = (
        r"--policy-engine numpy: only TensorFlow computes some operations of this policy "
        r"\(.*Conv2D.*\): say auto or tensorflow"
    )
    with pytest.raises(ConfigError, match=text):
        make_function(policy, spec, "numpy")


def test_large_networks_are_tensorflows_unless_someone_says_numpy() -> None:
    spec = from_spaces(VECTOR, DISCRETE)
    policy = make_policy("ppo", {"hidden_sizes": (1000, 1000)}, spec)
    # Two million multiply-adds a row, and some thousand elements.
    assert make_function(policy, spec, "auto", max_rows=20).by_numpy
    assert not make_function(policy, spec, "auto", max_rows=30).by_numpy
    assert make_function(policy, spec, "numpy", max_rows=30).by_numpy


def test_a_value_that_is_not_recorded_is_not_computed() -> None:
    spec = from_spaces(VECTOR, DISCRETE)
    policy = make_policy("vtrace", {"hidden_sizes": (1000, 1000)}, spec)
    # The policy's tower alone, half of the work above.
    assert make_function(policy, spec, "auto", max_rows=30).by_numpy
    assert not make_function(policy, spec, "auto", max_rows=60).by_numpy


def test_what_is_computed_element_by_element_counts_too() -> None:
    spec = from_spaces(VECTOR, spaces.Discrete(5000))
    policy = make_policy("vtrace", {"hidden_sizes": (8,)}, spec)
    assert make_function(policy, spec, "auto", max_rows=20).by_numpy
    assert not make_function(policy, spec, "auto", max_rows=100).by_numpy


def test_weights_reach_it_when_they_are_published_and_not_before() -> None:
    spec = from_spaces(VECTOR, DISCRETE)
    trained, acting = (make_policy("ppo", {"lstm_size": 8}, spec, seed) for seed in (1, 2))
    weights = PublishedWeights(variable_copier(trained.variables, acting.variables))
    function = make_function(acting, spec, "numpy", weights=weights)

    def values() -> list[float]:
        batch = batches(spec)[0]
        batch.flags[:] = pb.FIRST
        return function(batch).record["value"].tolist()  # type: ignore[no-any-return]

    before = values()
    acting.variables[0].assign_add(tf.ones_like(acting.variables[0]))
    assert values() == before
    weights.publish(1)
    after = values()
    assert not np.allclose(after, before)
    batch = batches(spec)[0]
    batch.flags[:] = pb.FIRST
    expected = make_function(trained, spec, "tensorflow")(batch).record["value"]
    np.testing.assert_allclose(after, expected, 1e-4, 1e-4)
    trained.variables[0].assign_add(tf.ones_like(trained.variables[0]))
    assert values() == after


DETERMINISTIC = """
import tensorflow as tf
from gymnasium import spaces
from learner.agent_options import AgentOptions
from learner.agents.build import make_agent
from learner.serving.policy_call import PolicyFunction
from protos.specs import from_spaces

tf.config.experimental.enable_op_determinism()
for action in (spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.Box(-1.0, 1.0, (2,))):
    spec = from_spaces(spaces.Box(-1.0, 1.0, (3,)), action)
    policy = make_agent(AgentOptions(lstm_size=4), spec, seed=1).make_policy()
    PolicyFunction(policy, spec.observation, num_slots=2, max_rows=2, seed=1, engine="numpy")
"""


def test_what_is_traced_for_reproducible_runs_is_known_too() -> None:
    """In a process of its own: deterministic operations are for good."""
    subprocess.run([sys.executable, "-c", DETERMINISTIC], check=True, capture_output=True, text=True)
