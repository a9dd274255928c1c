"""Requests become batches: nothing lost, nothing out of turn, padding in the scratch slot."""

import queue
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from learner.serving.batcher import Batcher, InferenceBatch, Request
from tests.fakes import PATIENCE_SECONDS, SPEC, observation

SCRATCH = 99


def make_batcher(max_rows: int = 4, consumers: int = 1) -> Batcher:
    return Batcher(SPEC.observation, max_rows=max_rows, scratch_slot=SCRATCH, consumers=consumers)


def submit(batcher: Batcher, request: Request) -> None:
    """Have it taken as soon as a thread is free."""
    batcher.submit(request)
    batcher.hand_over()


class Answers:
    """Makes requests and keeps what they were answered."""

    def __init__(self) -> None:
        self.got: dict[int, tuple[list[int], int]] = {}

    def request(self, *slots: int) -> Request:
        """A request for these slots, whose observations show the slots' numbers."""

        def reply(actions: np.ndarray, version: int) -> None:
            assert slots[0] not in self.got, "answered twice"
            self.got[slots[0]] = (actions.tolist(), version)

        return Request(
            slots=np.array(slots, np.int32),
            observation=[observation(*slots)],
            reward=np.array(slots, np.float32) / 2,
            flags=np.full(len(slots), 4, np.uint8),
            reply=reply,
        )


def rows(batch: InferenceBatch) -> list[int]:
    return batch.slots[: batch.size].tolist()


def test_requests_accumulate_while_a_batch_runs() -> None:
    batcher, answers = make_batcher(), Answers()
    submit(batcher, answers.request(0))
    batches = iter(batcher)
    assert rows(next(batches)) == [0]
    submit(batcher, answers.request(1, 2))
    submit(batcher, answers.request(3))
    assert rows(next(batches)) == [1, 2, 3]


def test_what_is_submitted_is_taken_only_when_it_is_handed_over_and_then_all_at_once() -> None:
    batcher, answers = make_batcher(), Answers()
    taken: queue.SimpleQueue[list[int]] = queue.SimpleQueue()

    def serve() -> None:
        for batch in batcher:
            taken.put(rows(batch))

    thread = threading.Thread(target=serve)
    thread.start()
    for slot in range(3):
        batcher.submit(answers.request(slot))
    batcher.hand_over()
    batcher.hand_over()  # there is nothing more: no empty batch
    assert taken.get(timeout=PATIENCE_SECONDS) == [0, 1, 2]
    submit(batcher, answers.request(3))
    assert taken.get(timeout=PATIENCE_SECONDS) == [3]
    batcher.close()
    thread.join(PATIENCE_SECONDS)
    assert taken.empty()


def test_what_waits_in_line_needs_no_further_handing_over() -> None:
    batcher, answers = make_batcher(max_rows=2), Answers()
    batcher.submit(answers.request(0, 1))
    batcher.submit(answers.request(2))
    batcher.hand_over()
    batches = iter(batcher)
    assert [rows(next(batches)) for _ in range(2)] == [[0, 1], [2]]


def test_a_batch_holds_each_rows_values_and_answers_each_request_with_its_own() -> None:
    batcher, answers = make_batcher(), Answers()
    submit(batcher, answers.request(5, 3))
    submit(batcher, answers.request(8))
    batch = next(iter(batcher))
    assert batch.size == 3
    np.testing.assert_array_equal(batch.observation[0][:3], observation(5, 3, 8))
    np.testing.assert_array_equal(batch.reward[:3], np.float32([2.5, 1.5, 4]))
    np.testing.assert_array_equal(batch.flags[:3], [4, 4, 4])
    batch.reply(batch.slots * 10, version=6)
    assert answers.got == {5: ([50, 30], 6), 8: ([80], 6)}


def test_rows_are_copied_when_they_are_submitted() -> None:
    batcher, answers = make_batcher(), Answers()
    request = answers.request(1, 2)
    submit(batcher, request)
    request.observation[0][:] = 77
    request.slots[:] = 55
    batch = next(iter(batcher))
    np.testing.assert_array_equal(batch.observation[0][:2], observation(1, 2))
    assert rows(batch) == [1, 2]


def test_buffers_are_used_again_instead_of_made_anew() -> None:
    batcher, answers = make_batcher(), Answers()
    batches = iter(batcher)
    seen = []
    for slot in range(6):
        submit(batcher, answers.request(slot))
        seen.append(id(next(batches).observation[0]))
    assert len(set(seen)) == 2


def test_padding_rows_stay_in_the_scratch_slot() -> None:
    batcher, answers = make_batcher(), Answers()
    batches = iter(batcher)
    for slots in [(0, 1, 2, 3), (4, 5, 6, 7), (8,), (9,)]:
        submit(batcher, answers.request(*slots))
        batch = next(batches)
        assert rows(batch) == list(slots)
        assert batch.slots[batch.size :].tolist() == [SCRATCH] * (4 - len(slots))


def test_what_does_not_fit_waits_and_nothing_overtakes_it() -> None:
    batcher, answers = make_batcher(max_rows=4), Answers()
    submit(batcher, answers.request(0, 1, 2))
    submit(batcher, answers.request(3, 4))  # does not fit
    submit(batcher, answers.request(5))  # would fit, but came later
    submit(batcher, answers.request(6, 7))
    assert batcher.statistics()["rows_waiting"] == 8
    batches = iter(batcher)
    assert [rows(next(batches)) for _ in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_what_would_never_fit_is_refused_and_holds_up_nobody() -> None:
    batcher, answers = make_batcher(max_rows=4), Answers()
    with pytest.raises(ValueError, match=r"^expected at most 4 rows, found 5$"):
        submit(batcher, answers.request(0, 1, 2, 3, 4))
    submit(batcher, answers.request(5, 6, 7, 8))
    assert rows(next(iter(batcher))) == [5, 6, 7, 8]


def test_a_large_request_is_not_starved_by_small_ones() -> None:
    batcher, answers = make_batcher(max_rows=4), Answers()
    batches = iter(batcher)
    submit(batcher, answers.request(0))
    submit(batcher, answers.request(1, 2, 3, 4))
    for slot in range(10, 20):
        submit(batcher, answers.request(slot))
    assert rows(next(batches)) == [0]
    assert rows(next(batches)) == [1, 2, 3, 4]


def test_statistics_count_what_was_taken_and_what_waits() -> None:
    batcher, answers = make_batcher(max_rows=4), Answers()
    batches = iter(batcher)
    submit(batcher, answers.request(0, 1, 2))
    next(batches)
    submit(batcher, answers.request(3, 4, 5))
    submit(batcher, answers.request(6, 7))
    assert batcher.statistics() == {"batches": 1, "rows": 3, "rows_waiting": 5, "max_rows": 4}
    next(batches), next(batches)
    assert batcher.statistics() == {"batches": 3, "rows": 8, "rows_waiting": 0, "max_rows": 4}


def test_each_batch_is_measured_by_its_rows_and_its_first_requests_wait() -> None:
    now = [10.0]
    answers = Answers()
    batcher = Batcher(SPEC.observation, max_rows=4, scratch_slot=SCRATCH, clock=lambda: now[0])
    batches = iter(batcher)
    submit(batcher, answers.request(0, 1, 2))
    now[0] = 10.5
    submit(batcher, answers.request(3, 4))  # in line, and first of the next batch
    submit(batcher, answers.request(5))
    now[0] = 12.0
    next(batches)  # waited 2 s
    now[0] = 12.5
    submit(batcher, answers.request(6))
    now[0] = 13.0
    next(batches)  # waited 2.5 s
    spreads = batcher.spreads()
    rows, wait = spreads["batch_rows"], spreads["batch_wait"]
    assert (rows.bounds, rows.counts, rows.total) == ((1, 2, 4), (0, 0, 2, 0), 7)
    assert wait.total == pytest.approx(4.5)
    assert wait.counts[wait.bounds.index(2.5)] == 2


@pytest.mark.parametrize("num_threads", [1, 2])
def test_threads_answer_every_request_exactly_once(num_threads: int) -> None:
    batcher, answers = make_batcher(max_rows=7, consumers=num_threads), Answers()
    answered: queue.SimpleQueue[None] = queue.SimpleQueue()
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            for batch in batcher:
                size = batch.size
                np.testing.assert_array_equal(batch.observation[0][:size, 0], batch.slots[:size])
                batch.reply(batch.slots + 1, 0)
                answered.put(None)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=serve) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    sizes = np.random.default_rng(1).integers(1, 6, 400).tolist()
    starts = np.cumsum([0, *sizes]).tolist()
    for start, size in zip(starts, sizes, strict=False):
        submit(batcher, answers.request(*range(start, start + size)))
    while len(answers.got) < len(sizes):
        assert not failures
        answered.get(timeout=PATIENCE_SECONDS)
    batcher.close()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
    assert answers.got == {
        start: (list(range(start + 1, start + size + 1)), 0)
        for start, size in zip(starts, sizes, strict=False)
    }
    assert batcher.statistics()["rows"] == sum(sizes)


def test_two_threads_work_on_different_batches_at_the_same_time() -> None:
    batcher, answers = make_batcher(consumers=2), Answers()
    one, other = iter(batcher), iter(batcher)
    submit(batcher, answers.request(0))
    first = next(one)
    submit(batcher, answers.request(1))
    second = next(other)
    submit(batcher, answers.request(2))
    assert rows(first) == [0]
    assert rows(second) == [1]
    assert rows(next(one)) == [2]


def test_who_submits_can_take_what_waits_without_handing_it_over() -> None:
    batcher, answers = make_batcher(), Answers()
    assert batcher.poll() is None
    batcher.submit(answers.request(0))
    batcher.submit(answers.request(1))
    batch = batcher.poll()
    assert batch is not None
    assert rows(batch) == [0, 1]
    assert batcher.poll() is None
    batcher.give_back(batch)
    batcher.submit(answers.request(2))
    again = batcher.poll()
    assert again is not None
    assert rows(again) == [2]
    assert batcher.statistics()["batches"] == 2


def test_what_was_polled_is_not_taken_again_by_a_thread() -> None:
    batcher, answers = make_batcher(consumers=2), Answers()
    submit(batcher, answers.request(0))
    batch = batcher.poll()
    assert batch is not None
    batcher.give_back(batch)
    submit(batcher, answers.request(1))
    assert rows(next(iter(batcher))) == [1]


def test_polling_takes_from_the_line_in_order() -> None:
    batcher, answers = make_batcher(max_rows=2), Answers()
    for start in range(3):
        batcher.submit(answers.request(start))
    first = batcher.poll()
    assert first is not None
    assert rows(first) == [0, 1]
    batcher.give_back(first)
    second = batcher.poll()
    assert second is not None
    assert rows(second) == [2]


def test_nothing_is_polled_from_a_closed_batcher() -> None:
    batcher, answers = make_batcher(), Answers()
    batcher.submit(answers.request(0))
    batcher.close()
    assert batcher.poll() is None


def test_closing_ends_threads_that_wait_and_drops_what_comes_later() -> None:
    batcher, answers = make_batcher(consumers=2), Answers()
    ended: queue.SimpleQueue[list[InferenceBatch]] = queue.SimpleQueue()
    for _ in range(2):
        threading.Thread(target=lambda: ended.put(list(batcher)), daemon=True).start()
    batcher.close()
    batcher.close()
    assert ended.get(timeout=PATIENCE_SECONDS) == ended.get(timeout=PATIENCE_SECONDS) == []
    submit(batcher, answers.request(0))
    assert batcher.statistics()["rows_waiting"] == 0


def test_closing_ends_the_iteration_even_if_requests_wait() -> None:
    batcher, answers = make_batcher(), Answers()
    batches: Iterator[InferenceBatch] = iter(batcher)
    submit(batcher, answers.request(0))
    next(batches)
    submit(batcher, answers.request(1))
    batcher.close()
    assert next(batches, None) is None
    assert answers.got == {}
