"""A thread under test: what it returns or raises, and whether it waits."""

import sys
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")

LIMIT_SECONDS = 10.0


class Running(Generic[Result]):
    """Runs `target` in a thread from the start."""

    def __init__(self, target: Callable[[], Result]) -> None:
        self._target = target
        self._results: list[Result] = []
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def until_it_waits(self, also: Callable[[], bool] = lambda: True) -> None:
        """Return once the thread waits in a condition variable, and `also` holds."""
        for _ in range(int(LIMIT_SECONDS * 1000)):
            if self._waits() and also():
                return
            self._thread.join(0.001)
            assert self._thread.is_alive(), "expected a thread that waits, found that it ended"
        raise AssertionError(f"expected a thread that waits, found none within {LIMIT_SECONDS:g} s")

    def result(self) -> Result:
        """What `target` returned, once it has; raises what it raised."""
        self._thread.join(LIMIT_SECONDS)
        assert not self._thread.is_alive(), "expected the thread to end, found it waiting"
        for error in self._errors:
            raise error
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._target())
        except BaseException as error:  # noqa: BLE001 - `result` raises it again
            self._errors.append(error)

    def _waits(self) -> bool:
        frame = sys._current_frames().get(self._thread.ident or 0)
        while frame is not None:
            if frame.f_code is threading.Condition.wait.__code__:
                return True
            frame = frame.f_back
        return False
