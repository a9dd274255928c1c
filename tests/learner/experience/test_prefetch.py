"""The prefetcher: batches in order, one ahead, ended from both sides; its failure is not silent."""

import numpy as np
import pytest

from learner.experience.prefetch import FreshBatches, Prefetcher
from learner.experience.trajectory import Batch
from learner.experience.unroll_queue import UnrollQueue
from learner.experience.unrolls import UnrollPool
from learner.threads import Threads
from protos.errors import WorkerFailure
from tests.learner.experience.running import Running
from tests.learner.experience.worlds import LAYOUT

BATCH_SIZE = 2
COLUMNS = 20


class Parts:
    """A prefetcher whose "device" is a list of what was copied there."""

    def __init__(self) -> None:
        self.pool = UnrollPool(LAYOUT, 3, COLUMNS)
        self.queue = UnrollQueue(COLUMNS)
        self.prepared: list[Batch] = []
        self.source = FreshBatches(self.queue, self.pool, BATCH_SIZE)
        self.prefetcher = Prefetcher(self.source, self._to_device)

    def _to_device(self, batch: Batch) -> Batch:
        self.prepared.append(batch)
        return batch

    def finish(self, *rewards: float) -> None:
        """Finished unrolls with these rewards in every row."""
        columns = self.pool.acquire(len(rewards))
        self.pool.reward[:, columns] = rewards
        self.queue.put(columns)


def test_batches_come_in_order_and_time_major() -> None:
    parts = Parts()
    parts.finish(*range(6))
    thread = Running(parts.prefetcher.run)
    batches = iter(parts.prefetcher)
    for expected in ([0, 1], [2, 3], [4, 5]):
        batch, _ = next(batches)
        np.testing.assert_array_equal(batch.reward, [expected] * 4)
    parts.queue.close()
    thread.result()


def test_one_batch_is_ready_while_one_is_trained_on_and_no_more() -> None:
    parts = Parts()
    parts.finish(*range(8))
    thread = Running(parts.prefetcher.run)
    batches = iter(parts.prefetcher)
    for trained in range(3):
        thread.until_it_waits(lambda n=trained: len(parts.prepared) == n + 1)
        assert parts.prefetcher.statistics() == {"ready": 1}
        assert parts.queue.statistics()["depth"] == 8 - BATCH_SIZE * (trained + 1)
        assert next(batches).batch is parts.prepared[trained]
    parts.prefetcher.close()
    thread.result()


def test_waits_for_a_whole_batch() -> None:
    parts = Parts()
    thread = Running(parts.prefetcher.run)
    parts.finish(1)
    thread.until_it_waits()
    assert parts.prepared == []
    parts.finish(2)
    np.testing.assert_array_equal(next(iter(parts.prefetcher)).batch.reward[0], [1, 2])
    parts.queue.close()
    thread.result()


def test_columns_go_back_to_the_pool_and_batches_outlive_them() -> None:
    parts = Parts()
    parts.finish(1, 2)
    thread = Running(parts.prefetcher.run)
    batch, _ = next(iter(parts.prefetcher))
    parts.queue.close()
    thread.result()
    assert sorted(parts.pool.acquire(COLUMNS)) == list(range(COLUMNS))
    parts.pool.reward.fill(77)
    np.testing.assert_array_equal(batch.reward[0], [1, 2])


def test_closing_ends_the_iteration_that_waits_and_the_thread_that_has_a_batch_ready() -> None:
    parts = Parts()
    trainer = Running(lambda: list(parts.prefetcher))
    trainer.until_it_waits()
    parts.prefetcher.close()
    assert trainer.result() == []

    parts = Parts()
    parts.finish(*range(4))
    thread = Running(parts.prefetcher.run)
    thread.until_it_waits(lambda: len(parts.prepared) == 1)
    parts.prefetcher.close()
    parts.prefetcher.close()
    assert thread.result() is None
    assert parts.queue.statistics()["depth"] == 2


def test_closing_the_queue_ends_the_thread_that_waits_for_unrolls() -> None:
    parts = Parts()
    thread = Running(parts.prefetcher.run)
    thread.until_it_waits()
    parts.queue.close()
    assert thread.result() is None


def test_failure_ends_the_iteration_and_reaches_the_main_thread() -> None:
    parts = Parts()
    trouble = MemoryError("device is full")

    def to_device(batch: Batch) -> Batch:
        raise trouble

    prefetcher = Prefetcher(parts.source, to_device)
    threads = Threads(on_failure=prefetcher.close)
    trainer = Running(lambda: list(prefetcher))
    trainer.until_it_waits()
    threads.start("prefetch thread", prefetcher.run)
    parts.finish(1, 2)
    assert trainer.result() == []
    with pytest.raises(
        WorkerFailure, match=r"^prefetch thread failed: MemoryError: device is full$"
    ) as failed:
        threads.raise_failure()
    assert failed.value.__cause__ is trouble
    assert threads.join(5.0) == []
