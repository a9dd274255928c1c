"""The experience of a run, put together: from answered steps to training batches on the device.

on-policy:  writer -> queue -> fresh batches -> prefetcher
replayed:   writer -> queue -> replay -> replayed batches -> prefetcher
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from learner.config import LearnerOptions
from learner.experience.prefetch import BatchSource, FreshBatches, Prefetcher
from learner.experience.rate_limiter import RateLimiter
from learner.experience.replay import Replay, Sample
from learner.experience.replay_batches import Gather, ReplayedBatches
from learner.experience.trajectory import Batch
from learner.experience.unroll_queue import UnrollQueue
from learner.experience.unrolls import (
    Layout,
    UnrollPool,
    UnrollWriter,
    bytes_per_column,
    pool_columns,
)
from learner.telemetry.statistics import Reporting
from protos.errors import ConfigError

REPLAY_QUEUE = 8
"""Unrolls on their way into the replay before actors wait: it takes them as soon as it may, and what
waits here is what acting is ahead of that."""


@dataclass(frozen=True)
class Experience:
    """The parts that the learner meets."""

    queue: UnrollQueue
    writer: UnrollWriter
    prefetcher: Prefetcher
    replayed: ReplayedBatches | None
    """None for agents that train on each unroll once"""

    def parts(self) -> dict[str, Reporting]:
        """Those with numbers to report, by name."""
        parts: dict[str, Reporting] = {
            "queue": self.queue,
            "unrolls": self.writer,
            "prefetch": self.prefetcher,
        }
        if self.replayed is not None:
            parts["replay"] = self.replayed
        return parts

    def restore(self, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> None:
        """Go on with what `ReplayedBatches.state` gave. Before any thread is started."""
        assert self.replayed is not None
        self.writer.number_from(self.replayed.restore(arrays, metadata))

    def close(self) -> None:
        """Wake and turn away everyone who waits. Any thread may call it. Idempotent."""
        self.prefetcher.close()
        self.queue.close()


def make_experience(
    options: LearnerOptions,
    layout: Layout,
    *,
    num_slots: int,
    to_device: Callable[[Batch], Batch],
    progress: Callable[[], float],
    seed: int,
    lock_step: bool = False,
) -> Experience:
    """The experience that the agent of `options` learns from.

    Args:
        options: of the run.
        layout: of the policy's steps.
        num_slots: environments served at once.
        to_device: copies a batch of arrays to where the training runs.
        progress: part of the run that is done, 0 to 1.
        seed: of what the replay draws.
        lock_step: acting waits for the weights that come of what it has finished.

    Raises:
        ConfigError: the replay does not fit the policy or its memory limit, or the system refuses so
            much memory.
    """
    capacity = _queue_capacity(options, lock_step)
    queue = UnrollQueue(capacity, lock_step=lock_step)
    # Whoever takes unrolls holds a batch of them until it is copied; or what the replay keeps, and
    # the whole queue until for that the oldest are evicted.
    kept = replay_columns(options, layout) if options.replays else options.batch_size
    moving = capacity + num_slots if options.replays else 0
    columns = pool_columns(num_slots, capacity, kept + moving)
    pool = _make_pool(options, layout, columns, num_slots)
    writer = UnrollWriter(pool, queue, num_slots)
    source: BatchSource
    if options.replays:
        source = _replayed(options, queue, pool, kept, columns, progress, seed, lock_step)
        return Experience(queue, writer, Prefetcher(source, to_device), source)
    source = FreshBatches(queue, pool, options.batch_size)
    return Experience(queue, writer, Prefetcher(source, to_device), None)


def _make_pool(options: LearnerOptions, layout: Layout, columns: int, num_slots: int) -> UnrollPool:
    try:
        return UnrollPool(layout, options.unroll_length, columns)
    except (MemoryError, ValueError) as error:
        # Nothing of it would be touched before it is needed, and yet systems refuse what is more than
        # they have; NumPy, what no system can address.
        size = bytes_per_column(layout, options.unroll_length)
        raise ConfigError(
            f"{columns} unrolls of {size} bytes, as --max-environments {num_slots} may need, are "
            f"{columns * size / 1e9:.3g} GB, more than the system gives: lower --max-environments, "
            "--unroll-length, or --replay-gigabytes or --queue-capacity if these are large"
        ) from error


def _queue_capacity(options: LearnerOptions, lock_step: bool) -> int:
    if not options.replays:
        return options.queue_capacity or options.batch_size
    return 1 if lock_step else options.queue_capacity or REPLAY_QUEUE


def replay_columns(options: LearnerOptions, layout: Layout) -> int:
    """How many unrolls the replay may keep.

    Raises:
        ConfigError: fewer than training needs.
    """
    size = bytes_per_column(layout, options.unroll_length)
    columns = int(options.replay_gigabytes * 1e9) // size
    needed = max(options.replay_min_size, options.batch_size * options.sample_length)
    if columns * options.unroll_length < needed:
        gigabytes = -(-needed // options.unroll_length) * size / 1e9
        raise ConfigError(
            f"--replay-gigabytes {options.replay_gigabytes:g} holds {columns} unrolls of {size} bytes, "
            f"and training needs {needed} transitions: raise it to {gigabytes:.3g}, or lower "
            "--replay-min-size or --batch-size"
        )
    return min(columns, options.replay_capacity // options.unroll_length)


def _replayed(
    options: LearnerOptions,
    queue: UnrollQueue,
    pool: UnrollPool,
    kept: int,
    columns: int,
    progress: Callable[[], float],
    seed: int,
    lock_step: bool,
) -> ReplayedBatches:
    def beta() -> float:
        begin, end = options.importance_exponent, options.importance_exponent_end
        return begin + (end - begin) * progress()

    trained = options.batch_size * options.trained_length
    gather, windows, unrolls = _shape(options, pool)
    return ReplayedBatches(
        queue,
        pool,
        Replay(
            columns,
            kept,
            np.random.default_rng(seed),
            unrolls=unrolls,
            windows=windows,
            priority_exponent=options.priority_exponent,
        ),
        RateLimiter(options.samples_per_insert, options.replay_min_size, trained),
        gather,
        batch_size=options.batch_size,
        importance_exponent=beta,
        lock_step=lock_step,
    )


def _shape(options: LearnerOptions, pool: UnrollPool) -> tuple[Gather, int, int]:
    """How a sample becomes a batch, and the windows and unrolls of an item."""
    if options.replays_sequences:
        return lambda sample: pool.gather_sequences(sample.columns), 1, options.replay_sequence_unrolls
    length = options.sample_length
    if pool.state:
        raise ConfigError(
            f"--agent {options.agent} replays single transitions, and a memory is stored once an "
            "unroll: say --lstm-size 0 and --frame-stack 1"
        )

    def gather(sample: Sample) -> Batch:
        return pool.gather_windows(sample.columns[0], sample.offsets, length)

    return gather, pool.length - length + 1, 1
