"""A recorded learner and actors as processes, each actor behind a network of its own that can break."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults import world
from benchmarks.faults.ledger import STEPS, Event, LedgerReader
from benchmarks.faults.proof import Proof, check_metrics, prove
from benchmarks.faults.proxy import Proxy
from protos.errors import SeedbedError

ROOT = Path(__file__).parents[2]
UNROLL_LENGTH = 8
ENDLESS = 10**12
"""Environment steps that no run here makes."""

PATIENCE_SECONDS = 180.0
"""Longest wait for what takes a few seconds on a quiet machine."""


class ClusterFailure(SeedbedError):
    """A process ended that should not have, or something did not happen in time."""


@dataclass(frozen=True)
class Settings:
    """Of a cluster."""

    folder: Path
    actors: int
    environments: int
    """of each actor"""
    lease_seconds: float
    checkpoint_seconds: float = 1.0


class ActorProcess:
    """One actor and its heirs: each is an incarnation with environments of its own."""

    def __init__(self, index: int, settings: Settings, proxy: Proxy) -> None:
        self.index = index
        self.proxy = proxy
        self.incarnation = -1
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, incarnation: int) -> None:
        """Start a process whose environments are numbered by `incarnation`."""
        self.incarnation = incarnation
        self._log = self._settings.folder / f"actor{self.index}-{incarnation}.log"
        arguments = (
            f"--server={self.proxy.address}",
            f"--env={world.ENV}",
            f"--num-envs={self._settings.environments}",
            f"--name=actor {self.index}",
            f"--parent={os.getpid()}",
        )
        environ = {**os.environ, world.INCARNATION_VARIABLE: str(incarnation)}
        self._process = _start(("-m", "actor", *arguments), self._log, environ)

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def check(self) -> None:
        """Raises: ClusterFailure, if it has ended."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise ClusterFailure(
                f"actor {self.index} ended with status {self._process.returncode}: {_tail(self._log)}"
            )

    def end(self, grace_seconds: float) -> bool:
        """Wait for the end, and after a while ask for it. Whether it came by itself.

        Raises:
            ClusterFailure: its status is not 0.
        """
        assert self._process is not None
        by_itself = True
        try:
            self._process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            by_itself = False
            self._process.terminate()
        if (status := self._process.wait(PATIENCE_SECONDS)) != 0:
            raise ClusterFailure(f"actor {self.index} ended with status {status}: {_tail(self._log)}")
        return by_itself

    def close(self) -> None:
        if self._process is not None:
            self.kill()


class LearnerProcess:
    """The learner and its heirs, each with a ledger of its own, in one run directory."""

    def __init__(self, settings: Settings) -> None:
        self.logdir = settings.folder / "run"
        self.port = _free_port()
        self.events: list[list[Event]] = []
        """what each incarnation has recorded, as far as `read` has come"""
        self.started_at = 0.0
        self.faults: list[str] = []
        self._settings = settings
        self._readers: list[LedgerReader] = []
        self._metrics_before: list[int] = []
        self._expected_version: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def incarnations(self) -> int:
        return len(self._readers)

    def start(self, total_steps: int = ENDLESS) -> None:
        """Start a process that goes on from the newest checkpoint."""
        number, folder = self.incarnations, self._settings.folder
        ledger = folder / f"learner{number}.ledger"
        self._log = folder / f"learner{number}.log"
        self._readers.append(LedgerReader(ledger))
        self.events.append([])
        self._metrics_before.append(len(self.metrics()))
        self._expected_version = self.newest_checkpoint()
        environments = self._settings.actors * self._settings.environments
        options = {
            "env": world.ENV,
            "listen": f"127.0.0.1:{self.port}",
            "logdir": self.logdir,
            "total_steps": total_steps,
            "unroll_length": UNROLL_LENGTH,
            "batch_size": 4,
            "hidden_sizes": "[16]",
            # Killed actors' leases last a while beside their heirs'.
            "max_environments": 16 * environments,
            "inference_batch_size": environments,
            "lease_seconds": self._settings.lease_seconds,
            "checkpoint_interval_seconds": self._settings.checkpoint_seconds,
            "log_interval_seconds": 0.5,
            "progress": "none",
            "tf_threads": 1,
        }
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        module = ("-m", "benchmarks.faults.recording_learner", str(ledger), "learner")
        self.started_at = time.time()
        self._process = _start((*module, *arguments), self._log, os.environ)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._check_resumed()

    def terminate(self) -> None:
        """SIGTERM, which saves; wait for the end, whose status is to be 0."""
        assert self._process is not None
        self._process.terminate()
        self.wait()

    def wait(self) -> None:
        """Wait for the end.

        Raises:
            ClusterFailure: it does not come, or its status is not 0.
        """
        assert self._process is not None
        try:
            status = self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise ClusterFailure(f"expected the learner's end; it said: {_tail(self._log)}") from None
        if status != 0:
            raise ClusterFailure(f"the learner ended with status {status}: {_tail(self._log)}")
        self._check_resumed()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def check(self) -> None:
        """Raises: ClusterFailure, if it has ended."""
        if not self.running:
            raise ClusterFailure(f"the learner has ended: {_tail(self._log)}")

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def newest_checkpoint(self) -> int | None:
        """Its policy version."""
        names = [path.stem for path in (self.logdir / "checkpoints").glob("step_*.npz")]
        return max((int(name.removeprefix("step_")) for name in names), default=None)

    def metrics(self) -> list[dict[str, Any]]:
        """The whole lines of metrics.jsonl."""
        path = self.logdir / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def env_steps(self) -> int:
        """Environment steps that metrics.jsonl tells of."""
        lines = self.metrics()
        return int(lines[-1]["env_steps"]) if lines else 0

    def read(self) -> list[Event]:
        """What the present incarnation has recorded since the last reading."""
        new = list(self._readers[-1].read())
        self.events[-1] += new
        return new

    def prove(self) -> Proof:
        """What has been read of all incarnations together, checked."""
        proof = prove(self.events, UNROLL_LENGTH)
        lines = self.metrics()
        ends = [*self._metrics_before[1:], len(lines)]
        for events, begin, end in zip(self.events, self._metrics_before, ends, strict=True):
            check_metrics(events, lines[begin:end], proof)
        proof.faults += self.faults
        return proof

    def _check_resumed(self) -> None:
        """The process that has ended went on from the newest checkpoint that it found."""
        said = re.search(r"resuming .* \(version ([\d,]+)\)", self._log.read_text(errors="replace"))
        resumed = int(said[1].replace(",", "")) if said else None
        started = bool(self.events[-1]) or said
        if started and resumed != self._expected_version:
            self.faults.append(
                f"expected the learner to go on from version {self._expected_version}, its newest "
                f"checkpoint, found {resumed}"
            )


class Cluster:
    """All processes of a run, and what is done to them. A context manager; used by one thread."""

    def __init__(self, settings: Settings) -> None:
        self.learner = LearnerProcess(settings)
        self.rows: Counter[int] = Counter()
        """rows that the learners have answered, by the actor's incarnation"""
        self.counts: Counter[str] = Counter()
        """what was done, by name"""
        self._settings = settings
        self._closing = ExitStack()
        self._incarnations = 0
        self.actors: list[ActorProcess] = []

    def __enter__(self) -> "Cluster":
        with ExitStack() as undo:
            undo.callback(self.learner.close)
            self.learner.start()
            for index in range(self._settings.actors):
                proxy = undo.enter_context(Proxy(self.learner.port))
                actor = ActorProcess(index, self._settings, proxy)
                undo.callback(actor.close)
                self.actors.append(actor)
                self._start_actor(actor)
            self._closing = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    # Faults -------------------------------------------------------------------------------------

    def kill_actor(self, actor: ActorProcess) -> None:
        """SIGKILL it, and start another one in its place."""
        self.counts["actors killed"] += 1
        actor.kill()
        self._start_actor(actor)

    def end_actor(self, actor: ActorProcess) -> None:
        """SIGTERM it, as who preempts it does, and start another one in its place.

        Raises:
            ClusterFailure: its status is not 0.
        """
        self.counts["actors ended"] += 1
        actor.end(grace_seconds=0)
        self._start_actor(actor)

    def stop_actor(self, actor: ActorProcess) -> None:
        """SIGSTOP, until `continue_actor`."""
        self.counts["actors stopped"] += 1
        actor.signal(signal.SIGSTOP)

    def continue_actor(self, actor: ActorProcess) -> None:
        actor.signal(signal.SIGCONT)

    def reset_streams(self, actor: ActorProcess) -> None:
        self.counts["streams reset"] += 1
        actor.proxy.reset()

    def cut_streams(self, actor: ActorProcess) -> None:
        self.counts["streams cut"] += 1
        actor.proxy.cut()

    def half_open(self, actor: ActorProcess) -> None:
        self.counts["streams half-open"] += 1
        actor.proxy.stall()

    def sever(self, actor: ActorProcess) -> None:
        """No network, until it heals."""
        self.counts["networks down"] += 1
        actor.proxy.sever()

    def delay(self, actor: ActorProcess, seconds: float) -> None:
        """A slow network; 0 for a fast one."""
        self.counts["networks slow"] += seconds > 0
        actor.proxy.delay(seconds)

    def kill_learner(self, total_steps: int = ENDLESS) -> None:
        """SIGKILL it, and start another one in its place."""
        self.counts["learners killed"] += 1
        self.learner.kill()
        self.poll(check=False)
        self.learner.start(total_steps)

    # Waiting ------------------------------------------------------------------------------------

    def poll(self, *, check: bool = True) -> list[Event]:
        """Take in what the learner has recorded since the last time.

        Raises:
            ClusterFailure: a process ended by itself.
        """
        new = self.learner.read()
        for event in new:
            if event.kind == STEPS:
                owners = event.payload["environment"] // world.ENVIRONMENTS_PER_ACTOR
                self.rows.update(owners.tolist())
        if check:
            self.learner.check()
            for actor in self.actors:
                actor.check()
        return new

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until `holds`, asked after every poll.

        Raises:
            ClusterFailure: it does not within `PATIENCE_SECONDS`, or a process ended by itself.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            if time.monotonic() > deadline:
                raise ClusterFailure(f"expected within {PATIENCE_SECONDS:g} s: {what}")
            time.sleep(0.02)  # The ledgers are files of other processes, which nothing announces.
            self.poll()

    def until_active(self, actors: Sequence[ActorProcess] | None = None, rows: int = 50) -> None:
        """Wait until each of these actors, or all, has so many more rows answered."""
        waited = self.actors if actors is None else actors
        goals = {actor.incarnation: self.rows[actor.incarnation] + rows for actor in waited}
        self.until(
            lambda: all(self.rows[one] >= goal for one, goal in goals.items()),
            f"rows by incarnation {goals}",
        )

    def until_saved(self) -> None:
        """Wait for a checkpoint that is newer than the newest."""
        before = self.learner.newest_checkpoint() or 0
        self.until(lambda: (self.learner.newest_checkpoint() or 0) > before, "another checkpoint")

    # The end ------------------------------------------------------------------------------------

    def finish(self, grace_seconds: float = 10.0) -> Proof:
        """Wait until the learner, which has a target, ends at it; let the actors end; check everything.

        Raises:
            ClusterFailure: a process did not end, or not with status 0.
        """
        self.learner.wait()
        self.poll(check=False)
        heard = [actor.end(grace_seconds) for actor in self.actors]
        self.counts["actors that heard of the end"] = sum(heard)
        return self.learner.prove()

    def _start_actor(self, actor: ActorProcess) -> None:
        self._incarnations += 1
        actor.start(self._incarnations)


def _start(arguments: Sequence[str], log: Path, environ: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )


def _tail(log: Path) -> str:
    with suppress(OSError):
        return "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    return ""


def _free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
