"""What a run's experience takes of the memory at the least, asked before any of it is allocated."""

from collections.abc import Sequence

from learner.config import LearnerOptions
from learner.experience.unrolls import Layout, bytes_per_column
from learner.memory_limit import require_memory
from protos.specs import ArraySpec


def check_memory(
    options: LearnerOptions, observation: Sequence[ArraySpec], *, max_rows: int, environments: int
) -> None:
    """Refuse a run whose observations alone cannot fit.

    Args:
        options: of the run.
        observation: the leaves.
        max_rows: most environments in a policy call.
        environments: that are sure to come; 0 if that is not known.

    Raises:
        ConfigError: saying what is needed, what there is, and the way out.
    """
    row = sum(leaf.num_bytes for leaf in observation)
    require_memory(
        # What the network is given; its own arrays come to as much at least.
        max_rows * row,
        f"policy calls for {max_rows} environments, of {row} bytes each",
        "lower --inference-batch-size, run fewer environments, or make observations smaller",
    )
    layout = Layout(observation, {}, {})
    column, batch = bytes_per_column(layout, options.unroll_length), options.batch_size
    if options.replays:
        transitions = min(options.replay_capacity, options.total_steps)
        kept = min(int(options.replay_gigabytes * 1e9), transitions * row)
        # Batches are copies, of the length that is drawn.
        copied = batch * bytes_per_column(layout, options.sample_length)
        require_memory(
            kept + environments * column + copied,
            f"a replay of {transitions} transitions, and batches, of observations of {row} bytes",
            "lower --replay-gigabytes, --replay-capacity or --batch-size, or make observations smaller",
        )
        return
    # A batch is copied while its unrolls are there, and every environment writes one of its own.
    require_memory(
        (max(batch, environments) + batch) * column,
        f"batches of {batch} unrolls of {options.unroll_length} steps, of {row} bytes each",
        "lower --batch-size or --unroll-length, run fewer environments, or make observations smaller",
    )
