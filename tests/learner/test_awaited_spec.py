"""Who says what a run trains on: a child process, or the first session."""

import threading

import numpy as np
import pytest
from google.protobuf import json_format

from learner import awaited_spec
from learner.awaited_spec import AwaitedSpec
from learner.threads import Threads
from protos import specs
from protos.errors import EnvironmentFailure, WorkerFailure
from tests.fakes import PATIENCE_SECONDS, SPEC

OTHER_SPEC = specs.EnvironmentSpec((specs.ArraySpec("", (3,), np.dtype(np.float32)),), SPEC.action)


class FakeDescription:
    """A child process that describes one environment, and fails for all others."""

    def __init__(self, env: str) -> None:
        self._env = env

    def text(self) -> str:
        if self._env != "Known-v0":
            raise EnvironmentFailure("no such environment")
        return str(json_format.MessageToJson(specs.to_proto(SPEC)))

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awaited_spec, "Description", FakeDescription)


def test_the_first_session_decides() -> None:
    awaited = AwaitedSpec(None)
    awaited.start(Threads(on_failure=lambda: None))
    assert (awaited.source, awaited.known()) == ("the first actor", False)
    awaited.offer(SPEC)
    assert awaited.known()
    awaited.offer(OTHER_SPEC)
    assert awaited.wait() == SPEC
    awaited.close()


def test_what_is_described_goes_before_what_comes() -> None:
    awaited, threads = AwaitedSpec("Known-v0"), Threads(on_failure=lambda: None)
    awaited.offer(OTHER_SPEC)
    assert (awaited.source, awaited.known()) == ("the environment's specs", False)
    awaited.start(threads)
    assert awaited.wait() == SPEC
    assert threads.join(PATIENCE_SECONDS) == []


def test_nothing_is_awaited_after_cancel() -> None:
    awaited = AwaitedSpec(None)
    found: list[object] = []
    waiting = threading.Thread(target=lambda: found.append(awaited.wait()))
    waiting.start()
    awaited.cancel()
    waiting.join(PATIENCE_SECONDS)
    awaited.offer(SPEC)
    assert [*found, awaited.wait()] == [None, None]


def test_an_environment_that_cannot_be_described_is_a_failure() -> None:
    awaited = AwaitedSpec("Unknown-v0")
    threads = Threads(on_failure=awaited.cancel)
    awaited.start(threads)
    assert awaited.wait() is None
    with pytest.raises(WorkerFailure, match="environment failed: EnvironmentFailure: no such"):
        threads.raise_failure()
