"""What an environment is like, from a child process: its words, its end, and who ends it."""

import os
import sys
from pathlib import Path

import pytest
from google.protobuf import json_format

from learner import local_actors
from learner.local_actors import Description
from protos import inference_pb2 as pb
from protos import specs
from protos.errors import EnvironmentFailure
from tests.learner.experience.running import Running


def test_it_gives_the_specs_as_json() -> None:
    spec = specs.from_proto(json_format.Parse(Description("CartPole-v1").text(), pb.EnvironmentSpec()))
    assert [leaf.shape for leaf in spec.observation] == [(4,)]


@pytest.mark.parametrize(
    ("script", "status", "words"),
    [
        (
            "import sys; sys.exit('NameNotFound: no such environment')",
            1,
            "NameNotFound: no such environment",
        ),
        (r"import os; os.write(2, b'caf\xe9'); os._exit(4)", 4, "caf�"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9, "no word"),
    ],
)
def test_it_fails_with_the_childs_own_words(
    monkeypatch: pytest.MonkeyPatch, script: str, status: int, words: str
) -> None:
    monkeypatch.setattr(local_actors, "actor_command", lambda *_: [sys.executable, "-c", script])
    with pytest.raises(EnvironmentFailure) as failed:
        Description("Nonsense-v0").text()
    assert str(failed.value) == f"--env Nonsense-v0 cannot be described (status {status}): {words}"


def test_what_the_child_said_before_is_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    script = "import sys; sys.exit('Traceback\\n  in make_env\\nseedbed-actor: error: no ROM')"
    monkeypatch.setattr(local_actors, "actor_command", lambda *_: [sys.executable, "-c", script])
    with caplog.at_level("INFO"), pytest.raises(EnvironmentFailure) as failed:
        Description("Pong").text()
    assert str(failed.value).endswith("described (status 1): seedbed-actor: error: no ROM")
    assert caplog.messages == ["[environment] Traceback", "[environment]   in make_env"]


def test_it_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import signal; signal.pause()"
    monkeypatch.setattr(local_actors, "actor_command", lambda *_: [sys.executable, "-c", script])
    with pytest.raises(EnvironmentFailure) as failed:
        Description("Slow-v0", timeout_seconds=0.05).text()
    assert str(failed.value) == "--env Slow-v0: expected its specs within 0.05 s, found nothing"


WAITS = "signal.pause()"
ENDS = "os.getpid() == process or signal.pause()"


class Asked:
    """A description that a thread asks for, of a child that has a child of its own.

    `alive` says the child's process and session, and comes to its end when both have ended.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, then: str, timeout_seconds: float = 120.0
    ) -> None:
        fifo = folder / "alive"
        os.mkfifo(fifo)
        script = (
            f"import os, signal; held = open({str(fifo)!r}, 'w', buffering=1); process = os.getpid()\n"
            f"held.write(f'{{process}} {{os.getsid(0)}}\\n'); os.fork(); {then}"
        )
        command = [sys.executable, "-S", "-E", "-c", script]
        monkeypatch.setattr(local_actors, "actor_command", lambda *_: command)
        self.description = Description("Slow-v0", timeout_seconds)
        self.thread = Running(self.description.text)
        self.alive = fifo.open()
        self.process, self.session = map(int, self.alive.readline().split())

    def failure(self) -> str:
        """What the thread is told, once nothing of the child is left."""
        with pytest.raises(EnvironmentFailure) as failed:
            self.thread.result()
        with self.alive:
            assert self.alive.read() == ""
        return str(failed.value)


def test_closing_it_kills_the_child_and_what_that_has_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = Asked(monkeypatch, tmp_path, WAITS)
    assert asked.process == asked.session != os.getsid(0), "so that Ctrl-C does not reach it"
    asked.description.close()
    assert asked.failure() == "--env Slow-v0 cannot be described (status -9): no word"
    asked.description.close()


@pytest.mark.parametrize("then", [WAITS, ENDS])
def test_giving_up_kills_what_the_child_has_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, then: str
) -> None:
    asked = Asked(monkeypatch, tmp_path, then, timeout_seconds=1.5)
    assert asked.failure() == "--env Slow-v0: expected its specs within 1.5 s, found nothing"


def test_closing_what_was_never_asked_does_nothing() -> None:
    Description("Nonsense-v0").close()
