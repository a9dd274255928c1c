"""What the replay copies out of the pool: sequences of unrolls and windows, and what they weigh."""

from dataclasses import replace

import numpy as np
import pytest

from learner.experience.unroll_queue import UnrollQueue
from learner.experience.unrolls import Layout, RowSpec, UnrollPool, UnrollWriter, bytes_per_column
from learner.flags import LeaseEnd
from protos.specs import ArraySpec
from tests.learner.experience.worlds import LAYOUT, Row, World, assert_same_batch, expected_batch

SLOTS = 3


class Parts:
    """Slots whose unrolls all stay in the pool."""

    def __init__(self, length: int, *, layout: Layout = LAYOUT) -> None:
        self.length = length
        self.pool = UnrollPool(layout, length, 60)
        self.queue = UnrollQueue(1000)
        self.writer = UnrollWriter(self.pool, self.queue, SLOTS)
        self.world = World(length, np.random.default_rng(length))

    def step(self, times: int, *slots: int) -> None:
        for _ in range(times):
            self.writer.append(self.world.step(slots))

    def finished(self) -> np.ndarray:
        return self.queue.poll(1000)

    def rows(self, slot: int, begin: int, transitions: int) -> list[Row]:
        """The truth, of the slot's present lease."""
        return self.world.rows[slot][begin : begin + transitions + 1]


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("unrolls", [1, 2, 4])
def test_a_sequence_is_what_happened_from_the_first_row_on(length: int, unrolls: int) -> None:
    parts = Parts(length)
    parts.step(5 * length + 1, 0, 1)
    # The columns of slot 0 and slot 1 by turns.
    columns = parts.finished().reshape(5, 2).T

    found = parts.pool.gather_sequences(
        np.stack([columns[0, :unrolls], columns[1, 5 - unrolls :]], axis=1)
    )

    transitions = unrolls * length
    expected = expected_batch(
        [parts.rows(0, 0, transitions), parts.rows(1, (5 - unrolls) * length, transitions)]
    )
    assert_same_batch(found, expected)


def test_the_stored_state_is_that_before_the_first_row_burn_in_included() -> None:
    """To begin the burn-in with the state of the row after it is a mistake easily made, and seldom
    noticed: the memory is then as many steps too late as the burn-in is long."""
    parts = Parts(length=2)
    parts.step(7, 0)
    batch = parts.pool.gather_sequences(parts.finished()[:, None])
    cells = [row.cell for row in parts.world.rows[0]]
    np.testing.assert_array_equal(batch.initial_state["cell"][0], cells[0])
    assert not np.array_equal(batch.initial_state["cell"][0], cells[2])


@pytest.mark.parametrize("window", [1, 2, 4])
def test_a_window_is_what_happened_from_its_offset_on(window: int) -> None:
    parts = Parts(length=4, layout=replace(LAYOUT, state={}))
    parts.step(9, 0, 1)
    columns = parts.finished()
    offsets = np.array([0, 4 - window, (4 - window) // 2, 0])

    found = parts.pool.gather_windows(columns, offsets, window)

    truth = [(0, 0), (1, 0), (0, 4), (1, 4)]
    expected = expected_batch(
        [
            parts.rows(slot, begin + offset, window)
            for (slot, begin), offset in zip(truth, offsets.tolist(), strict=True)
        ]
    )
    assert_same_batch(found._replace(initial_state=expected.initial_state), expected)
    assert found.initial_state == {}


def test_windows_of_a_policy_with_memory_are_a_mistake() -> None:
    parts = Parts(length=2)
    with pytest.raises(AssertionError, match="the memory before a row in the middle"):
        parts.pool.gather_windows(np.zeros(1, np.int64), np.zeros(1, np.int64), 1)


def test_unrolls_are_numbered_as_they_finish_and_know_which_they_continue() -> None:
    parts = Parts(length=2)
    parts.writer.number_from(100)
    parts.step(5, 0, 1)
    columns = parts.finished()
    assert parts.pool.serial[columns].tolist() == [100, 101, 102, 103]
    assert parts.pool.continues[columns].tolist() == [-1, -1, 100, 101]


def test_an_unroll_of_another_lease_continues_none() -> None:
    parts = Parts(length=2)
    parts.step(4, 0, 1)
    parts.writer.drop(np.array([0], np.int32), LeaseEnd.CLOSED)
    parts.world.end_lease([0])
    parts.step(3, 0, 1)
    columns = parts.finished()
    assert parts.pool.serial[columns].tolist() == [0, 1, 2, 3, 4]
    # Slot 0 and 1, slot 1 again, slot 0 anew and slot 1 once more.
    assert sorted(parts.pool.continues[columns].tolist()) == [-1, -1, -1, 1, 2]
    assert parts.pool.continues[columns].tolist()[2] == 1


@pytest.mark.parametrize("length", [1, 7])
def test_bytes_are_those_of_the_arrays(length: int) -> None:
    columns = 13
    pool = UnrollPool(LAYOUT, length, columns)
    arrays = [
        *pool.observation, pool.reward, pool.flags, pool.version, *pool.record.values(),
        *pool.state.values(), pool.serial, pool.continues,
    ]  # fmt: skip
    total = sum(array.nbytes for array in arrays)
    assert bytes_per_column(LAYOUT, length) * columns == total
    assert pool.bytes_per_column == bytes_per_column(LAYOUT, length)


def test_a_million_atari_steps_fit_into_8_gigabytes() -> None:
    atari = Layout(
        observation=(ArraySpec("", (84, 84, 1), np.dtype(np.uint8)),),
        record={"action": RowSpec((), np.dtype(np.int32))},
        state={name: RowSpec((512,), np.dtype(np.float32)) for name in ("lstm_h_0", "lstm_c_0")},
    )
    total = bytes_per_column(atari, 40) * 1_000_000 // 40
    # One image a step, and one more for every 40, which two unrolls share.
    assert total > 1_000_000 * 84 * 84 * 41 // 40
    assert total < 7.5e9
