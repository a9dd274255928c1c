"""What messages cost: the real server and batcher with zeros in the policy's place, and an actor process
that steps the environments and sends what they show.

Half of the messages are answered by a thread of its own, as inference threads do, and half by the event
loop at once, as it does where it calls the policy itself. That spares waking two threads, which costs as
much as small policies do.
"""

import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import json_format

from learner.local_actors import end_group
from learner.planning.model import Line
from learner.planning.ready import VERSION
from learner.scratch import scratch_folder
from learner.serving.addresses import Addresses
from learner.serving.batcher import Batcher, Request
from learner.serving.leases import Lane
from learner.serving.server import InferenceServer
from learner.serving.slots import Slots
from protos import inference_pb2 as pb
from protos import specs
from protos.errors import EnvironmentFailure
from protos.specs import EnvironmentSpec

MESSAGES = 400
"""that are counted of each way to answer"""

UNCOUNTED = 100
"""Connection, session and caches have settled by then. Of the first half before it is counted, and of
the second."""

LEASES = 4
"""Leases that there is room for: a session that ended may overlap with the next for a moment."""


@dataclass(frozen=True)
class AnswerCosts:
    """CPU seconds of the learner for a message and its answer, by number of environments."""

    learner_message: Line
    """in all its threads"""
    event_loop: Line
    """of it, the event loop's thread"""


@dataclass(frozen=True)
class ActorCosts:
    """CPU seconds by number of environments, and what these look like."""

    spec: EnvironmentSpec
    environment: Line
    """a step of them all, in the actor"""
    actor_message: Line
    """a message and its answer, in the actor"""
    by_thread: AnswerCosts
    """the same in the learner, where a thread of its own answers"""
    at_once: AnswerCosts
    """and where the event loop does"""


def measure_actor(env: str, sizes: Sequence[int], seconds: float) -> ActorCosts:
    """Step `env` and send messages about it, with each of these numbers of environments.

    Args:
        env: the environment, as in `seedbed train`.
        sizes: distinct numbers of environments, one measurement each.
        seconds: CPU seconds of stepping in each.

    Raises:
        EnvironmentFailure: the environment cannot be made, or failed; with its process's own words.
    """
    with scratch_folder() as folder:
        address = f"unix:{folder}/learner.sock"
        server = InferenceServer(Addresses(address), lease_seconds=0.0)
        with _without_words(), closing(server):
            server.start()
            argv = [
                sys.executable,
                "-m",
                "actor.measuring",
                f"--env={env}",
                f"--sizes={list(sizes)}",
                f"--seconds={seconds}",
                f"--server={address}",
                f"--messages={MESSAGES + UNCOUNTED + MESSAGES}",
                f"--uncounted-messages={UNCOUNTED}",
                f"--parent={os.getpid()}",
            ]
            with _objects(env, argv) as objects:
                spec = specs.from_proto(
                    json_format.ParseDict(next(objects)["spec"], pb.EnvironmentSpec())
                )
                with _answering(server, spec, max(sizes)) as marks:
                    by_size = {entry["environments"]: entry for entry in objects}
    return ActorCosts(
        spec=spec,
        environment=_line(by_size, "seconds_per_step", per_row=True),
        actor_message=_line(by_size, "seconds_per_message"),
        by_thread=_answer_costs({size: each.by_thread for size, each in marks.items()}),
        at_once=_answer_costs({size: each.at_once for size, each in marks.items()}),
    )


def _answer_costs(marks: Mapping[int, "Marks"]) -> AnswerCosts:
    return AnswerCosts(
        learner_message=Line.through({size: mark.process() for size, mark in marks.items()}),
        event_loop=Line.through({size: mark.thread() for size, mark in marks.items()}),
    )


@contextmanager
def _without_words() -> Iterator[None]:
    """Sessions that come and go are news in a run, not here."""
    serving = logging.getLogger("learner.serving")
    former = serving.level
    serving.setLevel(logging.WARNING)
    try:
        yield
    finally:
        serving.setLevel(former)


def _line(by_size: dict[int, dict[str, float]], key: str, *, per_row: bool = False) -> Line:
    return Line.through({size: entry[key] * (size if per_row else 1) for size, entry in by_size.items()})


@dataclass
class Marks:
    """CPU time at each message of one size that is answered in one way. Written by the event loop, read
    once it is idle."""

    process_seconds: list[float] = field(default_factory=list)
    thread_seconds: list[float] = field(default_factory=list)

    def add(self) -> None:
        self.process_seconds.append(time.process_time())
        self.thread_seconds.append(time.thread_time())

    def process(self) -> float:
        """CPU seconds of this process for a message, the first ones not counted."""
        return _mean_step(self.process_seconds)

    def thread(self) -> float:
        """CPU seconds of the event loop's thread for a message."""
        return _mean_step(self.thread_seconds)


@dataclass
class Halves:
    """The messages of one size."""

    by_thread: Marks = field(default_factory=Marks)
    at_once: Marks = field(default_factory=Marks)

    def add(self) -> bool:
        """Count the next one. True if it is to be answered at once."""
        first = len(self.by_thread.process_seconds) < UNCOUNTED + MESSAGES
        (self.by_thread if first else self.at_once).add()
        return not first


def _mean_step(seconds: list[float]) -> float:
    counted = seconds[UNCOUNTED:]
    return (counted[-1] - counted[0]) / (len(counted) - 1)


@contextmanager
def _answering(server: InferenceServer, spec: EnvironmentSpec, rows: int) -> Iterator[dict[int, Halves]]:
    """Answer the first half of the messages of each size by a thread of its own, the second at once;
    gives the marks by size."""
    marks: dict[int, Halves] = {}
    at_once = False
    slots = LEASES * rows
    batcher = Batcher(spec.observation, max_rows=rows, scratch_slot=slots)
    zeros = spec.action.zeros(rows)

    def submit(request: Request) -> None:
        nonlocal at_once
        at_once = marks.setdefault(len(request.slots), Halves()).add()
        batcher.submit(request)

    def hand_over() -> None:
        if at_once and (batch := batcher.poll()) is not None:
            batch.reply(zeros, VERSION)
            batcher.give_back(batch)
        else:
            batcher.hand_over()

    def answer() -> None:
        for batch in batcher:
            batch.reply(zeros, VERSION)

    thread = threading.Thread(target=answer, name="answers", daemon=True)
    thread.start()
    lane = Lane(
        spec=spec,
        slots=Slots(slots),
        max_rows=rows,
        submit=submit,
        hand_over=hand_over,
        version=lambda: VERSION,
        drop=lambda dropped, reason: None,
    )
    try:
        server.open_lanes({pb.TRAIN: lane})
        yield marks
    finally:
        batcher.close()
        thread.join()


@contextmanager
def _objects(env: str, argv: Sequence[str]) -> Iterator[Iterator[dict[str, Any]]]:
    """The objects that the process prints, as they come; it ends with the block."""
    with tempfile.TemporaryFile("w+") as words:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=words,
            text=True,
            errors="replace",
            # Ctrl-C in a terminal is not the environment's failure.
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            yield _lines(env, process, words)
        finally:
            end_group(process)
            process.wait()
            process.stdout.close()


def _lines(env: str, process: "subprocess.Popen[str]", words: Any) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)
    if process.wait() != 0:
        words.seek(0)
        raise EnvironmentFailure(
            f"--env {env} cannot be measured (status {process.returncode}):\n{words.read().strip()}"
        )
