"""The protocol that an algorithm implements; all else in the learner is shared between algorithms.

An agent is a policy to act with, and an update to learn by. Serving calls `Policy.act`, training
calls `Agent.update`; both are traced once into TensorFlow graphs, so they must be pure functions of
their arguments and of the variables that the object owns.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from learner.experience.trajectory import ActInputs, ActOutputs, Batch, State, Tensor

PRIORITIES = "priorities"
"""Name, among what an update returns, of the priorities of the batch's unrolls: float32 [B]."""


class Policy(Protocol):
    """One copy of the weights that act."""

    @property
    def state_specs(self) -> Mapping[str, Any]:
        """tf.TensorSpec (without batch dimension) of each entry of the policy's memory, which is
        zeros at the beginning of an episode. Empty for a policy without memory."""
        ...

    @property
    def variables(self) -> list[Any]:
        """The tf.Variables that acting reads, in the same order in every copy of the policy."""
        ...

    def act(
        self, inputs: ActInputs, state: State, *, seed: Tensor, greedy: bool
    ) -> tuple[ActOutputs, State]:
        """Choose actions for B environments.

        Args:
            inputs: what the environments show.
            state: [B, ...] each; already zeroed where `inputs.reset`.
            seed: int32 [2] for stateless sampling; differs at every call.
            greedy: the policy's best action instead of the behaviour policy's sample.

        Returns:
            The answer, and the memory to hand in at the environments' next step.
        """
        ...


class Agent(Protocol):
    """One algorithm, with everything that it trains."""

    @property
    def policy(self) -> Policy:
        """The policy whose variables `update` trains."""
        ...

    def make_policy(self) -> Policy:
        """Another copy of the policy, with variables of its own: what inference acts with."""
        ...

    def update(self, batch: Batch, progress: Tensor) -> Mapping[str, Tensor]:
        """Learn from one batch: one or more optimizer steps.

        Args:
            batch: unrolls.
            progress: float32 scalar, part of the run's environment steps that are done, for schedules.

        Returns:
            Scalars to report, "loss" among them, and "skipped_updates" (how many were left out so far,
            since they were not finite) if the agent leaves any out; and under `PRIORITIES`, if the
            algorithm has any, the batch's new priorities for replay.
        """
        ...

    @property
    def variables(self) -> Mapping[str, Any]:
        """Every tf.Variable that a checkpoint must hold to go on (weights, optimizer, targets,
        counters), by a name that stays the same between processes."""
        ...
