"""How many threads TensorFlow splits one operation over (intra-op)."""

from learner.config import available_cores


def operation_threads(chosen: int) -> int:
    """Threads for a `--tf-threads` of `chosen`: half of the cores where nobody says how many, because
    policy calls and updates run side by side and would wait for each other's."""
    return chosen or max(available_cores() // 2, 1)


def set_operation_threads(chosen: int) -> None:
    """Let TensorFlow use so many in this process, from its first operation on.

    Raises:
        RuntimeError: TensorFlow was at work here before, with other threads than were chosen. Where none
            were, it keeps those.
    """
    import tensorflow as tf

    try:
        tf.config.threading.set_intra_op_parallelism_threads(operation_threads(chosen))
    except RuntimeError:
        # A program that runs a learner within itself, or a second one.
        if chosen:
            raise
