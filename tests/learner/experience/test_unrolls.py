"""The pool and the writer of unrolls, against the slow truth in `worlds`, in random interleavings."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from learner.experience.trajectory import State
from learner.experience.unroll_queue import UnrollQueue
from learner.experience.unrolls import UnrollPool, UnrollWriter, pool_columns
from learner.flags import LeaseEnd
from tests.learner.experience.running import Running
from tests.learner.experience.worlds import LAYOUT, World, assert_same_batch, expected_batch

PLENTY = 10_000


class Parts:
    """A pool, a queue and a writer, with a world that feeds them."""

    def __init__(
        self,
        *,
        slots: int = 3,
        length: int = 2,
        capacity: int = PLENTY,
        columns: int = 64,
        seed: int = 0,
    ) -> None:
        self.columns = columns
        self.pool = UnrollPool(LAYOUT, length, columns)
        self.queue = UnrollQueue(capacity)
        self.writer = UnrollWriter(self.pool, self.queue, slots)
        self.world = World(length, np.random.default_rng(seed))

    def step(self, *slots: int) -> bool:
        """Step as the inference thread does; False if there is no more use for it."""
        steps = self.world.step(slots)
        if not self.writer.wait_for_room():
            return False
        self.writer.append(steps)
        return True

    def take_and_compare(self, count: int) -> None:
        """The `count` oldest finished unrolls are the truth's."""
        expected, self.world.unrolls = self.world.unrolls[:count], self.world.unrolls[count:]
        columns = self.queue.take(count)
        assert columns is not None
        batch = self.pool.gather(columns)
        self.pool.release(columns)
        assert_same_batch(batch, expected_batch(expected))

    def assert_no_leak(self) -> None:
        """Every column is free, once."""
        assert sorted(self.pool.acquire(self.columns)) == list(range(self.columns))


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("seed", range(6))
def test_random_interleavings_of_steps_leases_and_batches(length: int, seed: int) -> None:
    slots = 5
    parts = Parts(slots=slots, length=length, columns=2 * slots + 24, seed=seed)
    world, rng = parts.world, np.random.default_rng(1000 + seed)
    dropped = np.zeros(2, int)
    finished = 0
    for _ in range(300):
        world.version += int(rng.integers(2))
        chosen = rng.permutation(slots)[: rng.integers(1, slots + 1)].tolist()
        world.asked.clear()
        before = len(world.unrolls)
        assert parts.step(*chosen)
        finished += len(world.unrolls) - before
        asked = np.concatenate([np.empty(0, int), *world.asked])
        assert sorted(asked) == sorted(world.begins(chosen))
        if rng.random() < 0.15:
            over = rng.permutation(slots)[: rng.integers(1, slots + 1)]
            dropped += world.end_lease(over.tolist())
            parts.writer.drop(over.astype(np.int32), LeaseEnd.CLOSED)
        while len(world.unrolls) > 20 or (world.unrolls and rng.random() < 0.3):
            parts.take_and_compare(int(rng.integers(1, min(len(world.unrolls), 4) + 1)))
        assert parts.queue.statistics()["depth"] == len(world.unrolls)
        assert parts.writer.statistics() == {
            "finished": finished,
            "dropped": dropped[0],
            "dropped_closed": dropped[0],
            **dict.fromkeys(("dropped_expired", "dropped_refused", "dropped_drained"), 0),
            "dropped_steps": dropped[1],
            "unfinished": len(world.rows),
        }
    assert finished > 50
    assert dropped[0] > 10
    if world.unrolls:
        parts.take_and_compare(len(world.unrolls))
    parts.writer.drop(np.arange(slots, dtype=np.int32), LeaseEnd.CLOSED)
    parts.assert_no_leak()


def test_unroll_has_one_row_more_than_transitions_and_shares_it_with_the_next() -> None:
    parts = Parts(length=2)
    for _ in range(5):
        parts.step(0)
    assert parts.queue.statistics()["depth"] == 2
    columns = parts.queue.take(2)
    assert columns is not None
    batch = parts.pool.gather(columns)
    assert batch.reward.shape == (3, 2)
    np.testing.assert_array_equal(batch.observation[1][2, 0], batch.observation[1][0, 1])
    assert batch.record["action"][2, 0] == batch.record["action"][0, 1]


def test_memory_is_asked_for_only_where_an_unroll_begins() -> None:
    parts = Parts(length=3)
    asked = []
    for _ in range(7):
        parts.world.asked.clear()
        parts.step(2, 0)
        asked.append([rows.tolist() for rows in parts.world.asked])
    assert asked == [[[0, 1]], [], [], [[0, 1]], [], [], [[0, 1]]]


def test_memory_is_fetched_while_the_writer_is_free() -> None:
    """The device may take its time, and the event loop must be able to end a lease meanwhile."""
    parts = Parts(length=2)
    steps = parts.world.step([0, 1])
    during: list[Mapping[str, float]] = []

    def state_before(rows: np.ndarray) -> State:
        parts.writer.drop(np.array([2], np.int32), LeaseEnd.CLOSED)
        during.append(parts.writer.statistics())
        return steps.state_before(rows)

    Running(lambda: parts.writer.append(steps._replace(state_before=state_before))).result()
    assert [statistics["unfinished"] for statistics in during] == [0]
    assert parts.writer.statistics()["unfinished"] == 2
    parts.step(0, 1)
    parts.step(1, 0)
    parts.take_and_compare(2)


def test_policy_without_memory_is_never_asked_for_it() -> None:
    parts = Parts(length=1)
    pool = UnrollPool(replace(LAYOUT, state={}), 1, 8)
    writer = UnrollWriter(pool, parts.queue, 3)
    for _ in range(3):
        writer.append(parts.world.step([0]))
    assert parts.world.asked == []
    columns = parts.queue.take(2)
    assert columns is not None
    assert pool.gather(columns).initial_state == {}


def test_slot_of_another_lease_begins_afresh() -> None:
    parts = Parts(length=2)
    parts.step(0)
    parts.step(0)
    parts.writer.drop(np.array([0], np.int32), LeaseEnd.CLOSED)
    parts.world.end_lease([0])
    for _ in range(3):
        parts.step(0)
    parts.take_and_compare(1)
    assert parts.queue.statistics()["depth"] == 0


def test_dropping_counts_transitions_that_were_lost() -> None:
    parts = Parts(length=3)
    for _ in range(3):
        parts.step(0, 1)
    parts.step(1)
    parts.writer.drop(np.array([0, 1, 2], np.int32), LeaseEnd.CLOSED)
    # Slot 0 loses 2 transitions; slot 1 has just finished its 3, and slot 2 never took a step.
    statistics = parts.writer.statistics()
    assert (statistics["dropped"], statistics["dropped_steps"]) == (2, 2)
    assert statistics["unfinished"] == 0
    parts.writer.drop(np.array([0, 1, 2], np.int32), LeaseEnd.CLOSED)
    assert parts.writer.statistics() == statistics


def test_dropped_unrolls_are_counted_by_reason() -> None:
    parts = Parts(length=3)
    parts.step(0, 1, 2)
    parts.writer.drop(np.array([0], np.int32), LeaseEnd.EXPIRED)
    parts.writer.drop(np.array([1, 2], np.int32), LeaseEnd.REFUSED)
    parts.step(0)
    parts.writer.drop(np.array([0], np.int32), LeaseEnd.DRAINED)
    statistics = parts.writer.statistics()
    reasons = [statistics[f"dropped_{reason}"] for reason in ("closed", "expired", "refused", "drained")]
    assert (reasons, statistics["dropped"]) == ([0, 1, 2, 1], 4)


def test_dropping_leaves_finished_unrolls_and_other_slots_alone() -> None:
    parts = Parts(length=2)
    for _ in range(3):
        parts.step(0, 1)
    parts.step(0, 1)
    parts.writer.drop(np.array([0], np.int32), LeaseEnd.CLOSED)
    parts.world.end_lease([0])
    parts.step(1)
    parts.take_and_compare(3)


def test_gathered_batch_is_a_copy() -> None:
    parts = Parts(length=1)
    parts.step(0)
    parts.step(0)
    columns = parts.queue.take(1)
    assert columns is not None
    batch = parts.pool.gather(columns)
    expected = expected_batch(parts.world.unrolls)
    for array in (*parts.pool.observation, parts.pool.reward, *parts.pool.state.values()):
        array.fill(77)
    assert_same_batch(batch, expected)


def test_columns_are_reused_last_in_first_out() -> None:
    pool = UnrollPool(LAYOUT, 2, 1000)
    first = pool.acquire(3)
    assert first.tolist() == [0, 1, 2]
    assert pool.acquire(0).tolist() == []
    pool.release(first)
    assert sorted(pool.acquire(3)) == sorted(first)


def test_empty_pool_says_that_its_size_is_wrong() -> None:
    pool = UnrollPool(LAYOUT, 2, 4)
    pool.acquire(3)
    with pytest.raises(AssertionError, match="the pool is sized for every slot and a full queue"):
        pool.acquire(2)


def test_acting_waits_while_the_queue_is_full() -> None:
    parts = Parts(length=1, capacity=2)
    for _ in range(3):
        parts.step(0)
    actor = Running(lambda: parts.step(0))
    actor.until_it_waits()
    assert parts.writer.statistics()["finished"] == 2
    parts.queue.take(1)
    assert actor.result() is True
    assert parts.writer.statistics()["finished"] == 3


def test_leases_end_while_acting_waits() -> None:
    parts = Parts(length=1, capacity=1)
    parts.step(0, 1)
    parts.step(0)
    actor = Running(lambda: parts.step(0))
    actor.until_it_waits()
    parts.writer.drop(np.array([1], np.int32), LeaseEnd.CLOSED)
    assert parts.writer.statistics()["dropped"] == 1
    parts.queue.close()
    assert actor.result() is False


def test_closing_the_queue_turns_away_who_waits_and_who_comes() -> None:
    parts = Parts(length=1, capacity=1)
    parts.step(0)
    parts.step(0)
    actors = [Running(lambda: parts.step(0)), Running(lambda: parts.step(1))]
    for actor in actors:
        actor.until_it_waits()
    parts.queue.close()
    assert [actor.result() for actor in actors] == [False, False]
    assert parts.step(2) is False
    assert parts.writer.statistics()["unfinished"] == 1


def test_pool_of_two_columns_a_slot_a_queue_and_a_batch_is_never_short() -> None:
    """The most columns in use at once: the queue one below full, a batch at the prefetch thread, and
    every slot about to finish its unroll and to begin another."""
    slots, capacity, batch_size = 4, 3, 3
    enough = pool_columns(slots, capacity, batch_size)
    parts = Parts(slots=slots, length=1, capacity=capacity, columns=enough - 1)
    parts.step(0)
    parts.step(0, 1, 2, 3)  # depth 1
    parts.step(0, 1, 2, 3)  # depth 5
    in_hand = parts.queue.take(batch_size)  # depth 2, and nothing released
    assert in_hand is not None
    assert parts.step(0, 1, 2, 3)
    with pytest.raises(AssertionError):
        parts.pool.acquire(1)


def test_two_inference_threads_and_a_prefetch_thread() -> None:
    """Each thread has slots of its own, and so a truth of its own; versions tell them apart."""
    slots, length, batch_size, batches = 3, 4, 6, 30
    parts = Parts(
        slots=2 * slots, length=length, capacity=batch_size, columns=4 * slots + 2 * batch_size
    )
    worlds = [World(length, np.random.default_rng(n), version=n) for n in range(2)]
    ready = threading.Barrier(2)

    def act(world: World) -> None:
        rng = np.random.default_rng(100 + world.version)
        ready.wait()
        acting = True
        while acting:
            chosen = rng.permutation(slots)[: rng.integers(1, slots + 1)] + slots * world.version
            steps = world.step(chosen.tolist())
            acting = parts.writer.wait_for_room()
            if acting:
                parts.writer.append(steps)

    actors = [Running(partial(act, world)) for world in worlds]
    found: list[list[list[int]]] = [[], []]
    for _ in range(batches):
        columns = parts.queue.take(batch_size)
        assert columns is not None
        batch = parts.pool.gather(columns)
        parts.pool.release(columns)
        for version, actions in zip(batch.version.T, batch.record["action"].T, strict=True):
            assert len(set(version)) == 1
            found[version[0]].append(actions.tolist())
    parts.queue.close()
    for actor in actors:
        actor.result()
    for world, unrolls in zip(worlds, found, strict=True):
        truth = [[row.action for row in unroll] for unroll in world.unrolls]
        assert len(unrolls) > 10
        assert unrolls == truth[: len(unrolls)]
