"""Keras optimizers, with gradient clipping, a schedule, and a guard against what is not finite."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from learner.agents.layers import Variables
from learner.config import AgentOptions
from learner.experience.trajectory import Tensor


class Optimizer:
    """Changes variables by their gradients.

    Args:
        options: optimizer, learning rate and its schedule, clipping.
        trainable: what to change.
    """

    def __init__(self, options: AgentOptions, trainable: Variables) -> None:
        self._clip_norm = options.clip_gradient_norm
        self._trainable = list(trainable.values())
        self._linear = options.learning_rate_schedule == "linear"
        self._initial_rate = options.learning_rate
        self._optimizer = _make_optimizer(options)
        self._optimizer.build(self._trainable)  # Outside the graph that `apply` is traced into.
        self._skipped = tf.Variable(0, dtype=tf.int64, trainable=False, name="skipped_updates")

    @property
    def variables(self) -> dict[str, Any]:
        """The tf.Variables of the optimizer's state, by stable names.

        Keras's own names count the layers of a process. The order of its variables is fixed.
        """
        slots = self._optimizer.variables
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
        learning_rate = tf.constant(self._initial_rate, tf.float32)
        if self._linear:
            # A run may take a few steps more than it was to: the rate must not turn negative.
            learning_rate *= tf.maximum(1.0 - progress, 0.0)
        self._optimizer.learning_rate.assign(learning_rate)
        if self._clip_norm:
            gradients, _ = tf.clip_by_global_norm(gradients, self._clip_norm, norm)

        def step() -> Tensor:
            self._optimizer.apply(gradients, self._trainable)
            return self._skipped.read_value()

        def skip() -> Tensor:
            return self._skipped.assign_add(1)

        skipped = tf.cond(finite, step, skip)
        return {"gradient_norm": norm, "learning_rate": learning_rate, "skipped_updates": skipped}


def _make_optimizer(options: AgentOptions) -> Any:
    learning_rate = options.learning_rate
    if options.optimizer == "adam":
        return keras.optimizers.Adam(learning_rate, epsilon=options.optimizer_epsilon)
    if options.optimizer == "rmsprop":
        # Decay as in Espeholt et al. 2018, table G.1.
        return keras.optimizers.RMSprop(learning_rate, rho=0.99, epsilon=options.optimizer_epsilon)
    return keras.optimizers.SGD(learning_rate)
