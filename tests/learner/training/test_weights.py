"""Published weights: never changed under a reader, whatever the number of threads."""

import queue
import threading

import pytest
import tensorflow as tf

from learner.training.weights import PublishedWeights, variable_copier
from tests.fakes import PATIENCE_SECONDS


class Thread(threading.Thread):
    """A thread that tells that it began and that it ended."""

    def __init__(self, target: object) -> None:
        super().__init__(target=target, daemon=True)
        self.start()

    def ended(self) -> bool:
        self.join(PATIENCE_SECONDS)
        return not self.is_alive()


def test_readers_get_the_version_and_publishing_raises_it() -> None:
    copied = []
    weights = PublishedWeights(lambda: copied.append(None), version=3)
    assert weights.version == 3
    with weights as version:
        assert version == 3
    weights.publish(4)
    assert (weights.version, len(copied)) == (4, 1)
    with weights as version:
        assert version == 4


def test_readers_read_together() -> None:
    weights = PublishedWeights(lambda: None)
    both = threading.Barrier(2)

    def read() -> None:
        with weights:
            both.wait(PATIENCE_SECONDS)

    one, other = Thread(read), Thread(read)
    assert one.ended()
    assert other.ended()
    assert not both.broken


def test_publishing_waits_for_readers_and_later_readers_wait_for_it() -> None:
    events: list[str] = []
    publishing = threading.Event()
    weights = PublishedWeights(lambda: events.append("copied"))

    def publish() -> None:
        publishing.set()
        weights.publish(1)
        events.append("published")

    def read_late() -> None:
        with weights as version:
            events.append(f"read {version}")

    with weights as version:
        assert version == 0
        publisher = Thread(publish)
        publishing.wait(PATIENCE_SECONDS)
        # The publisher announces itself before it waits for this reader.
        while not weights._publishing:
            pass
        reader = Thread(read_late)
        assert events == []
        assert weights.version == 0
    assert publisher.ended()
    assert reader.ended()
    assert events[0] == "copied"
    assert sorted(events[1:]) == ["published", "read 1"]


def test_no_read_ever_sees_half_a_publication() -> None:
    values = [0, 0]
    wrong: queue.SimpleQueue[tuple[int, list[int]]] = queue.SimpleQueue()
    done = threading.Event()

    def copy() -> None:
        for index in range(2):
            values[index] += 1

    weights = PublishedWeights(copy)

    def read() -> None:
        while not done.is_set():
            with weights as version:
                seen = list(values)
                if seen != [version, version] or weights.version != version:
                    wrong.put((version, seen))

    readers = [Thread(read) for _ in range(4)]
    for version in range(1, 301):
        weights.publish(version)
    done.set()
    assert all(reader.ended() for reader in readers)
    assert wrong.empty()
    assert values == [300, 300]


def test_a_copy_that_fails_changes_no_version_and_blocks_nobody() -> None:
    def copy() -> None:
        raise ValueError("boom")

    weights = PublishedWeights(copy, version=2)
    with pytest.raises(ValueError, match="boom"):
        weights.publish(3)
    with weights as version:
        assert version == 2


def test_a_reader_that_fails_blocks_nobody() -> None:
    weights = PublishedWeights(lambda: None)
    with pytest.raises(ValueError, match="boom"), weights:
        raise ValueError("boom")
    weights.publish(1)
    assert weights.version == 1


def test_the_copier_assigns_every_variable_to_its_counterpart() -> None:
    source = [tf.Variable([1.0, 2.0]), tf.Variable(3)]
    target = [tf.Variable([0.0, 0.0]), tf.Variable(0)]
    copy = variable_copier(source, target)
    assert [variable.numpy().tolist() for variable in target] == [[0, 0], 0]
    source[0].assign([5.0, 6.0])
    copy()
    assert [variable.numpy().tolist() for variable in target] == [[5, 6], 3]
    source[1].assign(9)
    assert target[1].numpy() == 3


def test_the_copier_refuses_lists_that_do_not_match() -> None:
    with pytest.raises(ValueError, match="zip"):
        variable_copier([tf.Variable(1)], [])
