"""Memory tables: rows by slot, and zeros for whoever starts afresh."""

import numpy as np
import tensorflow as tf

from learner.serving.env_state import StateTables

SPECS = {"h": tf.TensorSpec((2,), tf.float32), "frames": tf.TensorSpec((3, 4), tf.uint8)}


def test_a_slot_has_what_was_stored_or_zeros_after_a_reset() -> None:
    tables = StateTables(SPECS, num_slots=3)
    rng = np.random.default_rng(0)
    every = tf.constant([2, 0, 3, 1])  # The last one is the scratch slot.
    state = {
        "h": tf.constant(rng.normal(size=(4, 2)), tf.float32),
        "frames": tf.constant(rng.integers(1, 256, (4, 3, 4)), tf.uint8),
    }

    tables.scatter(every, state)
    found = tables.gather(every, tf.constant([False, True, True, False]))

    for name, value in found.items():
        expected = state[name].numpy()
        expected[1:3] = 0
        np.testing.assert_array_equal(value, expected)
        assert value.dtype == SPECS[name].dtype


def test_a_reset_forgets_nothing_until_the_next_step_is_stored() -> None:
    tables = StateTables({"h": SPECS["h"]}, num_slots=2)
    slots = tf.constant([1])
    tables.scatter(slots, {"h": tf.ones((1, 2))})

    tables.gather(slots, tf.constant([True]))

    np.testing.assert_array_equal(tables.gather(slots, tf.constant([False]))["h"], [[1, 1]])
