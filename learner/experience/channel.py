"""A bounded hand-over between two threads that can be closed from either side."""

import threading
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Channel(Generic[Item]):
    """At most `capacity` items between a producer and a consumer; both block, and both can end it.

    `queue.Queue` cannot be closed while somebody waits in it (until Python 3.13). `_lock` guards
    every field.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: deque[Item] = deque()
        self._closed = False
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    def wait_for_room(self) -> bool:
        """Block while the channel is full: a lone producer's next `put` then hands over at once.

        False if the channel was closed.
        """
        with self._lock:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._capacity)
            return not self._closed

    def put(self, item: Item) -> bool:
        """Hand `item` over, once there is room. False if the channel was closed instead."""
        with self._lock:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._capacity)
            if not self._closed:
                self._items.append(item)
                self._changed.notify_all()
            return not self._closed

    def __iter__(self) -> Iterator[Item]:
        """Items as they come, until the channel is closed; what was not taken by then is dropped."""
        while True:
            with self._lock:
                self._changed.wait_for(lambda: self._closed or bool(self._items))
                if self._closed:
                    return
                item = self._items.popleft()
                self._changed.notify_all()
            yield item

    def close(self) -> None:
        """Wake and turn away both sides. Idempotent."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def __len__(self) -> int:
        with self._lock:
            return len(self._items)
