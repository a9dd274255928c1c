"""Keras optimizers, with gradient clipping, a schedule, and a guard against what is not finite."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from learner.agent_options import AgentOptions
from learner.agents.layers import Variables
from learner.experience.trajectory import Tensor


class Optimizer:
    """Changes variables by their gradients.

    Args:
        options: optimizer, learning rate and its schedule, clipping.
        trainable: what to change.
        rates: learning rates of some of them, by name; of the others it is the options'.
    """

    def __init__(
        self, options: AgentOptions, trainable: Variables, rates: Mapping[str, float] | None = None
    ) -> None:
        self._clip_norm = options.clip_gradient_norm
        self._linear = options.learning_rate_schedule == "linear"
        rate_of = [(rates or {}).get(name, options.learning_rate) for name in trainable]
        self._initial_rate = options.learning_rate
        self._groups = [
            _Group(options, rate, [i for i, each in enumerate(rate_of) if each == rate], trainable)
            for rate in dict.fromkeys(rate_of)
        ]
        self._skipped = tf.Variable(0, dtype=tf.int64, trainable=False, name="skipped_updates")

    @property
    def variables(self) -> dict[str, Any]:
        """The tf.Variables of the optimizer's state, by stable names.

        Keras's own names count the layers of a process. The order of its variables is fixed.
        """
        slots = [slot for group in self._groups for slot in group.optimizer.variables]
        named = {f"slot_{i:03d}": slot.value for i, slot in enumerate(slots)}
        return named | {"skipped_updates": self._skipped}

    def apply(self, loss: Tensor, gradients: Sequence[Tensor], progress: Tensor) -> dict[str, Tensor]:
        """One step, or none if the loss or a gradient is not finite: one bad batch must not turn
        all weights into NaN.

        Args:
            loss: scalar.
            gradients: one for each variable.
            progress: float32 scalar, part of the run that is done; the linear schedule reaches 0 at 1.

        Returns:
            Scalars to report: the norm before clipping, the learning rate, the skipped steps so far.
        """
        norm = tf.linalg.global_norm(gradients)
        finite = tf.math.is_finite(loss) & tf.math.is_finite(norm)
        # A run may take a few steps more than it was to: the rate must not turn negative.
        left = tf.maximum(1.0 - progress, 0.0) if self._linear else tf.ones(())
        if self._clip_norm:
            gradients, _ = tf.clip_by_global_norm(gradients, self._clip_norm, norm)

        def step() -> Tensor:
            for group in self._groups:
                group.optimizer.learning_rate.assign(group.rate * left)
                group.optimizer.apply([gradients[i] for i in group.indices], group.trainable)
            return self._skipped.read_value()

        def skip() -> Tensor:
            return self._skipped.assign_add(1)

        skipped = tf.cond(finite, step, skip)
        learning_rate = self._initial_rate * left
        return {"gradient_norm": norm, "learning_rate": learning_rate, "skipped_updates": skipped}


class _Group:
    """Variables with one learning rate, and the Keras optimizer that changes them."""

    def __init__(
        self, options: AgentOptions, rate: float, indices: list[int], trainable: Variables
    ) -> None:
        variables = list(trainable.values())
        self.rate = rate
        self.indices = indices
        """where their gradients are among all"""
        self.trainable = [variables[i] for i in indices]
        self.optimizer = _make_optimizer(options)
        self.optimizer.build(self.trainable)  # Outside the graph that `apply` is traced into.


def _make_optimizer(options: AgentOptions) -> Any:
    learning_rate = options.learning_rate
    if options.optimizer == "adam":
        return keras.optimizers.Adam(learning_rate, epsilon=options.optimizer_epsilon)
    if options.optimizer == "rmsprop":
        # Decay as in Espeholt et al. 2018, table G.1.
        return keras.optimizers.RMSprop(learning_rate, rho=0.99, epsilon=options.optimizer_epsilon)
    return keras.optimizers.SGD(learning_rate)
