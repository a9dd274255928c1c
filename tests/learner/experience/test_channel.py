"""The channel: order, bound, and closing from either side while the other one waits."""

from itertools import islice

from learner.experience.channel import Channel
from tests.learner.experience.running import Running


def test_items_come_in_order_and_never_more_than_the_capacity() -> None:
    channel = Channel[int](3)
    producer = Running(lambda: [channel.put(item) for item in range(100)])
    depths, items = [], []
    for item in islice(channel, 100):
        depths.append(len(channel))
        items.append(item)
    assert items == list(range(100))
    assert max(depths) <= 3
    assert producer.result() == [True] * 100


def test_put_waits_while_full() -> None:
    channel = Channel[str](1)
    assert channel.put("a")
    producer = Running(lambda: channel.put("b"))
    producer.until_it_waits()
    assert len(channel) == 1
    assert next(iter(channel)) == "a"
    assert producer.result() is True
    assert next(iter(channel)) == "b"


def test_iteration_waits_while_empty() -> None:
    channel = Channel[str](1)
    consumer = Running(lambda: next(iter(channel)))
    consumer.until_it_waits()
    channel.put("a")
    assert consumer.result() == "a"


def test_wait_for_room_waits_while_full_and_takes_no_room() -> None:
    channel = Channel[str](1)
    assert channel.wait_for_room()
    assert channel.put("a")
    producer = Running(channel.wait_for_room)
    producer.until_it_waits()
    next(iter(channel))
    assert producer.result() is True
    assert len(channel) == 0


def test_consumer_closes_while_the_producer_waits() -> None:
    channel = Channel[str](1)
    channel.put("a")
    producers = [Running(lambda: channel.put("b")), Running(channel.wait_for_room)]
    for producer in producers:
        producer.until_it_waits()
    channel.close()
    assert [producer.result() for producer in producers] == [False, False]


def test_producer_closes_while_the_consumer_waits() -> None:
    channel = Channel[str](1)
    consumer = Running(lambda: list(channel))
    consumer.until_it_waits()
    channel.close()
    assert consumer.result() == []


def test_closing_drops_what_was_not_taken_and_turns_away_what_comes() -> None:
    channel = Channel[str](2)
    channel.put("a")
    channel.close()
    channel.close()
    assert list(channel) == []
    assert channel.put("b") is False
    assert channel.wait_for_room() is False
    assert len(channel) == 1


def test_closing_ends_an_iteration_between_two_items() -> None:
    channel = Channel[str](2)
    channel.put("a")
    channel.put("b")
    items = iter(channel)
    assert next(items) == "a"
    channel.close()
    assert next(items, "ended") == "ended"
