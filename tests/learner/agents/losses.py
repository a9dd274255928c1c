"""Losses of actor-critics in NumPy, for networks of one tanh layer and discrete actions; and what the
tests of several agents do with batches."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from learner.agent_options import AgentOptions
from learner.agents.actor_critic import ActorCriticAgent
from learner.agents.build import make_agent
from learner.experience.trajectory import Batch
from learner.presets import AGENT_DEFAULTS
from protos.specs import EnvironmentSpec
from tests import reference

START = tf.constant(0.0)
"""Progress of a run that begins: the schedules are where they start."""

GRADIENT_DESCENT = {
    "optimizer": "sgd",
    "learning_rate": 1.0,
    "learning_rate_schedule": "constant",
    "clip_gradient_norm": 0.0,
}
"""The change of the weights is the gradient."""


def options_of(agent: str, **chosen: Any) -> AgentOptions:
    """The agent's defaults, small, with these options."""
    known = AgentOptions.__dataclass_fields__
    defaults = {name: value for name, value in AGENT_DEFAULTS[agent].items() if name in known}
    return AgentOptions(**{**defaults, "agent": agent, "hidden_sizes": (6,), **chosen})


def build(agent: str, environment: EnvironmentSpec, *, seed: int = 1, **chosen: Any) -> Any:
    made = make_agent(options_of(agent, **chosen), environment, seed=seed)
    assert isinstance(made, ActorCriticAgent)
    return made


class Evaluation(NamedTuple):
    """What the weights say of each row, float64 [T, B]."""

    values: np.ndarray
    log_probs: np.ndarray
    entropies: np.ndarray


def evaluate(
    weights: Mapping[str, np.ndarray], observation: np.ndarray, actions: np.ndarray
) -> Evaluation:
    """By the weights alone, for observations [T, B, n] and action indices [T, B]."""
    arrays = {name: np.asarray(v, np.float64) for name, v in weights.items()}
    for_policy, for_value = (
        np.tanh(observation @ arrays[f"{tower}/kernel"] + arrays[f"{tower}/bias"])
        for tower in ("network/tower_0/encoder/mlp/dense_0", "network/tower_1/encoder/mlp/dense_0")
    )
    logits = for_policy @ arrays["policy_head/kernel"] + arrays["policy_head/bias"]
    values = (for_value @ arrays["value_head/kernel"] + arrays["value_head/bias"])[..., 0]
    log_probs, entropies = np.zeros(actions.shape), np.zeros(actions.shape)
    for i in np.ndindex(*actions.shape):
        log_probs[i] = reference.categorical_log_prob(logits[i], actions[i])
        entropies[i] = reference.categorical_entropy(logits[i])
    return Evaluation(values, log_probs, entropies)


def assert_gradient(
    agent: ActorCriticAgent,
    before: Mapping[str, np.ndarray],
    loss: Callable[[Mapping[str, np.ndarray]], float],
) -> None:
    """That the weights have moved from `before` against the gradient of `loss`, at rate 1."""
    for name, variable in agent.policy.trainable.items():

        def of_one(x: np.ndarray, name: str = name) -> float:
            return loss({**before, name: x})

        gradient = reference.numeric_gradient(of_one, before[name].astype(np.float64), 1e-5)
        found = before[name] - variable.numpy()
        np.testing.assert_allclose(found, gradient, rtol=1e-3, atol=2e-5, err_msg=name)


def off_policy(batch: Batch, seed: int = 0) -> Batch:
    """The same batch as if another policy had acted."""
    noise = np.random.default_rng(seed).normal(0, 0.3, batch.first.shape).astype(np.float32)
    return batch._replace(record={**batch.record, "log_prob": batch.record["log_prob"] + noise})


def corrupted(batch: Batch, keep: tuple[str, ...] = ()) -> Batch:
    """The batch with nonsense where there is no transition: in the record of last rows, but for the
    entries to `keep`, and in the reward of the rows after."""
    last = (batch.terminated | batch.truncated).numpy()
    assert last[:-1].any()
    record = {name: value.numpy() for name, value in batch.record.items()}
    for name, value in record.items():
        if name not in keep:
            value[last] = np.nan if value.dtype.kind == "f" else 1 - value[last]
    reward = batch.reward.numpy()
    reward[1:][last[:-1]] = np.nan
    tensors = {name: tf.constant(value) for name, value in record.items()}
    return batch._replace(record=tensors, reward=tf.constant(reward))


def assert_same_weights(one: ActorCriticAgent, other: ActorCriticAgent) -> None:
    for name, variable in one.variables.items():
        np.testing.assert_array_equal(variable, other.variables[name], err_msg=name)
