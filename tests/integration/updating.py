"""One learner's part of two updates of every agent that can be trained together."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from learner.agents.build import make_agent
from learner.experience.trajectory import Batch
from learner.group import ALONE, Group, Learners
from tests.learner.agents import losses, samples

NORMALIZING = {"normalize_observations": True, "normalize_rewards": True, "normalize_advantages": True}

AGENTS: dict[str, dict[str, Any]] = {
    "vtrace": {"clip_gradient_norm": 0.1},
    "a2c": {**NORMALIZING, "learning_rate": 0.1},
    # In one minibatch, so that it does not matter how the transitions are shuffled.
    "ppo": {**NORMALIZING, "learning_rate": 0.1, "epochs": 2, "minibatches": 1, "max_kl": 100.0},
}

BATCH = 6


def updated(agent: str, learners: Learners, columns: slice, seed: int) -> dict[str, np.ndarray]:
    """The variables of an agent, and what its second update reported, by name.

    Args:
        agent: its name.
        learners: those who train it.
        columns: of the batch that all of them have, those of this one.
        seed: of the weights before the first learner has shared its own.
    """
    options = losses.options_of(agent, **{**losses.GRADIENT_DESCENT, **AGENTS[agent]})
    spec = samples.spec()
    made = make_agent(options, spec, seed=seed, learners=learners)
    if isinstance(learners, Group):
        learners.share(list(made.variables.values()))
    acting = make_agent(options, spec, seed=1).make_policy()
    update = tf.function(made.update, autograph=False)
    scalars: Any = {}
    for number in range(2):
        whole = samples.rollout(acting, spec, length=5, batch=BATCH, seed=number)
        scalars = update(part_of(losses.off_policy(whole), columns), losses.START)
    named = {**made.variables, **{f"scalar/{name}": value for name, value in scalars.items()}}
    return {name: value.numpy() for name, value in named.items()}


def part_of(batch: Batch, columns: slice) -> Batch:
    """Some of the unrolls of a batch."""
    whole = batch._replace(initial_state={}, weight=batch.first)
    part: Batch = tf.nest.map_structure(lambda x: x[:, columns], whole)
    state = {name: value[columns] for name, value in batch.initial_state.items()}
    return part._replace(initial_state=state, weight=batch.weight[columns])


def write(group: Group, file: Path) -> None:
    """What becomes of every agent, by the updates of a group."""
    # Not halves: the second learner has other transitions, and another number of them.
    own = slice(group.index, None, group.size)
    found = {
        f"{agent}:{name}": value
        for agent in AGENTS
        for name, value in updated(agent, group, own, seed=1 + group.index).items()
    }
    found["text"] = np.array(group.text_from_first(f"of learner {group.index}"))
    np.savez(file, **found)  # type: ignore[arg-type]  # the stub takes no **kwargs


def alone(agent: str) -> dict[str, np.ndarray]:
    """The same of one learner that has the whole batch."""
    return updated(agent, ALONE, slice(None), seed=1)
