"""Batches from the replay: who waits for whom, in lock-step and with every thread at once."""

import logging
import threading
from collections.abc import Callable

import numpy as np
import pytest

from learner.experience.prefetch import Prefetcher, Prepared
from learner.experience.rate_limiter import RateLimiter
from learner.experience.replay import Replay, Sample
from learner.experience.replay_batches import HOPELESS_TURNS, ReplayedBatches
from learner.experience.trajectory import Batch
from learner.experience.unroll_queue import UnrollQueue
from learner.experience.unrolls import UnrollPool, UnrollWriter, pool_columns
from learner.flags import LeaseEnd
from protos.errors import TrainingFailure
from tests.learner.experience.running import Running
from tests.learner.experience.worlds import LAYOUT, World

LENGTH, BATCH_SIZE = 2, 3


class Parts:
    """A writer, a queue, a replay, and the batches that come of it.

    Each batch trains on B T = 6 transitions; an unroll has 2.
    """

    def __init__(
        self,
        *,
        slots: int = 2,
        queue_capacity: int = 100,
        capacity: int = 20,
        min_size: int = 4,
        samples_per_insert: float = 1.0,
        unrolls: int = 1,
        lock_step: bool = False,
        beta: Callable[[], float] = lambda: 0.5,
    ) -> None:
        columns = pool_columns(slots, queue_capacity, capacity + queue_capacity + slots)
        self.pool = UnrollPool(LAYOUT, LENGTH, columns)
        self.queue = UnrollQueue(queue_capacity, lock_step=lock_step)
        self.writer = UnrollWriter(self.pool, self.queue, slots)
        self.world = World(LENGTH, np.random.default_rng(0))
        self.replay = Replay(
            columns, capacity, np.random.default_rng(1), unrolls=unrolls, priority_exponent=1.0
        )
        trained = BATCH_SIZE * LENGTH * unrolls
        self.source = ReplayedBatches(
            self.queue,
            self.pool,
            self.replay,
            RateLimiter(samples_per_insert, min_size, trained),
            lambda sample: self.pool.gather_sequences(sample.columns),
            batch_size=BATCH_SIZE,
            importance_exponent=beta,
            lock_step=lock_step,
        )

    def finish(self, *slots: int, count: int = 1) -> None:
        """Each of these slots finishes so many unrolls."""
        for _ in range(count * LENGTH + (0 if self.world.rows else 1)):
            self.writer.append(self.world.step(slots))

    def next(self) -> Prepared:
        prepared = self.source.next_batch()
        assert prepared is not None
        return prepared

    def close(self) -> None:
        self.source.close()
        self.queue.close()


def test_the_first_batch_waits_for_the_minimum() -> None:
    parts = Parts(min_size=4)
    thread = Running(parts.next)
    thread.until_it_waits()
    parts.finish(0)
    thread.until_it_waits(lambda: parts.replay.unrolls == 1)
    parts.finish(0)
    batch, _ = thread.result()
    assert batch.reward.shape == (LENGTH + 1, BATCH_SIZE)
    assert parts.source.statistics()["sample_waits"] == 2


def test_samples_wait_for_inserts_that_they_are_ahead_of() -> None:
    parts = Parts(min_size=2)
    parts.finish(0)
    parts.next()  # 6 transitions trained, none owed
    thread = Running(parts.next)
    thread.until_it_waits()
    parts.finish(0, count=2)
    thread.until_it_waits(lambda: parts.replay.unrolls == 3)
    parts.finish(0)
    thread.result()
    assert parts.replay.unrolls == 4
    assert parts.source.statistics()["samples_per_insert"] == 12 / 6


def test_inserts_wait_for_samples_so_that_the_queue_fills_and_acting_waits() -> None:
    parts = Parts(min_size=2, samples_per_insert=3.0, queue_capacity=3)
    parts.finish(0, count=5)
    # The first unroll owes nothing, and the tolerance is one batch: 6 transitions, or one unroll more.
    parts.next()
    statistics = parts.source.statistics()
    assert (statistics["unrolls"], statistics["insert_waits"]) == (2, 1)
    assert parts.queue.statistics()["depth"] == 3
    actor = Running(parts.writer.wait_for_room)
    actor.until_it_waits()
    parts.next()
    assert actor.result() is True
    assert parts.source.statistics()["unrolls"] == 3


def test_the_oldest_unrolls_go_back_to_the_pool() -> None:
    parts = Parts(capacity=3, min_size=2, samples_per_insert=1.0)
    parts.finish(0, count=4)
    parts.next()
    assert parts.source.statistics()["evicted"] == 1
    free = len(parts.pool._free)
    parts.finish(0, count=1)
    parts.next()
    assert len(parts.pool._free) == free
    assert parts.source.statistics()["bytes"] == 3 * parts.pool.bytes_per_column
    assert parts.source.statistics()["transitions"] == 3 * LENGTH


def test_a_batch_brings_its_weights_and_takes_its_priorities() -> None:
    betas = iter([0.0, 1.0])
    parts = Parts(min_size=4, samples_per_insert=100.0, beta=lambda: next(betas))
    parts.finish(0, 1, count=2)
    batch, on_trained = parts.next()
    assert batch.weight.tolist() == [1.0] * BATCH_SIZE
    actions = batch.record["action"][0].tolist()
    on_trained(np.array([1e-6 if a == actions[0] else 10.0 for a in actions], np.float32))
    batch, on_trained = parts.next()
    on_trained(None)
    assert actions[0] not in batch.record["action"][0].tolist()
    assert batch.weight.max() == 1


def test_lock_step_draws_only_after_the_priorities_and_acts_only_after_all_of_it() -> None:
    parts = Parts(min_size=2, samples_per_insert=6.0, queue_capacity=1, lock_step=True)
    parts.finish(0)
    _, on_trained = parts.next()  # allowed: one batch, for the minimum
    actor = Running(parts.writer.wait_for_room)
    actor.until_it_waits()
    thread = Running(parts.source.next_batch)
    thread.until_it_waits()
    assert parts.source.statistics()["sampled"] == 6
    on_trained(np.ones(BATCH_SIZE, np.float32))
    # Nothing more is owed: acting may go on, and the next batch waits for it.
    assert actor.result() is True
    parts.finish(0)
    prepared = thread.result()
    assert prepared is not None
    # 2 transitions more owe 12, which are two batches: acting waits for both.
    actor = Running(parts.writer.wait_for_room)
    actor.until_it_waits()
    prepared.on_trained(None)
    parts.next().on_trained(None)
    assert parts.source.statistics()["sampled"] == 18
    thread = Running(parts.source.next_batch)
    assert actor.result() is True
    parts.close()
    assert thread.result() is None


def test_lock_step_is_the_same_every_time() -> None:
    def run() -> list[list[float]]:
        parts = Parts(
            slots=4, min_size=4, samples_per_insert=2.0, queue_capacity=1, capacity=6, lock_step=True
        )
        drawn: list[list[float]] = []
        prefetcher = Prefetcher(parts.source, lambda batch: batch)

        def act() -> None:
            while parts.writer.wait_for_room():
                parts.writer.append(parts.world.step([0, 1, 2, 3]))

        threads = [Running(prefetcher.run), Running(act)]
        for batch, on_trained in prefetcher:
            drawn.append(batch.reward.ravel().tolist())
            on_trained(np.abs(batch.reward[1]).astype(np.float32))
            if len(drawn) == 60:
                break
        prefetcher.close()
        parts.queue.close()
        for thread in threads:
            thread.result()
        return drawn

    assert run() == run()


def test_closing_ends_every_wait() -> None:
    parts = Parts()
    thread = Running(parts.source.next_batch)
    thread.until_it_waits()
    parts.close()
    assert thread.result() is None

    parts = Parts(min_size=2, lock_step=True)
    parts.finish(0)
    parts.next()
    thread = Running(parts.source.next_batch)
    thread.until_it_waits()
    parts.close()
    parts.close()
    assert thread.result() is None


def test_a_replay_too_small_for_any_sequence_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    parts = Parts(slots=4, capacity=4, min_size=2, unrolls=2)
    parts.finish(0, 1, 2, 3, count=4)
    parts.queue.close()
    with caplog.at_level(logging.WARNING):
        assert parts.source.next_batch() is None
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("the replay is full, and no sequence in it is whole")


def test_a_replay_that_never_has_a_whole_sequence_is_a_failure() -> None:
    parts = Parts(slots=4, capacity=4, min_size=2, unrolls=2)
    parts.finish(0, 1, 2, 3, count=1 + HOPELESS_TURNS)
    parts.queue.close()
    assert parts.source.next_batch() is None  # there was still hope

    parts = Parts(slots=4, capacity=4, min_size=2, unrolls=2)
    parts.finish(0, 1, 2, 3, count=2 + HOPELESS_TURNS)
    with pytest.raises(TrainingFailure, match="keeps 4 unrolls, and no sequence in it becomes whole"):
        parts.source.next_batch()


def test_every_thread_at_once() -> None:
    """Two actors write, the prefetch thread inserts, evicts and gathers, the trainer sets priorities,
    and each sequence is still one that happened, with the memory before its first row."""
    unrolls, slots = 3, 3
    parts = Parts(
        slots=2 * slots, capacity=40, queue_capacity=6, min_size=12, samples_per_insert=2.0,
        unrolls=unrolls,
    )  # fmt: skip
    worlds = [World(LENGTH, np.random.default_rng(n), version=n) for n in range(2)]
    history: dict[int, tuple[int, int, int]] = {}
    """by action, which is as good as unique: version, lease and time"""
    cells: dict[int, float] = {}
    leases = [0]
    lock = threading.Lock()

    def act(world: World) -> None:
        rng = np.random.default_rng(100 + world.version)
        lease = {}
        while parts.writer.wait_for_room():
            chosen = (rng.permutation(slots)[:2] + slots * world.version).tolist()
            if rng.random() < 0.03:
                parts.writer.drop(np.array(chosen[:1], np.int32), LeaseEnd.CLOSED)
                world.end_lease(chosen[:1])
            steps = world.step(chosen)
            with lock:
                for slot in chosen:
                    row = world.rows[slot][-1]
                    if len(world.rows[slot]) == 1:
                        leases[0] += 1
                        lease[slot] = leases[0]
                    history[row.action] = (world.version, lease[slot], len(world.rows[slot]))
                    cells[row.action] = float(row.cell[0])
            parts.writer.append(steps)

    prefetcher = Prefetcher(parts.source, lambda batch: batch)
    threads = [Running(prefetcher.run), *[Running(lambda w=world: act(w)) for world in worlds]]
    rng = np.random.default_rng(5)
    for number, (batch, on_trained) in enumerate(prefetcher):
        for column in range(BATCH_SIZE):
            actions = batch.record["action"][:, column].tolist()
            with lock:
                found = [history[action] for action in actions]
                cell = cells[actions[0]]
            version, lease, time = found[0]
            assert found == [(version, lease, time + t) for t in range(unrolls * LENGTH + 1)]
            assert (time - 1) % LENGTH == 0
            assert batch.initial_state["cell"][column].tolist() == [cell] * 4
        on_trained(rng.exponential(size=BATCH_SIZE).astype(np.float32))
        if number == 200:
            break
    prefetcher.close()
    parts.close()
    for thread in threads:
        thread.result()
    statistics = parts.source.statistics()
    assert statistics["evicted"] > 20
    assert statistics["samples_per_insert"] == pytest.approx(2.0, rel=0.1)


def test_gather_is_given_the_sample() -> None:
    seen: list[Sample] = []
    parts = Parts(min_size=2)
    original = parts.source._gather

    def gather(sample: Sample) -> Batch:
        seen.append(sample)
        return original(sample)

    parts.source._gather = gather
    parts.finish(0)
    batch, _ = parts.next()
    np.testing.assert_array_equal(batch.weight, seen[0].weights)
