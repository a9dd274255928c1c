"""Trials of `seedbed tune`: one way to run a training, and what a short run that way has reached."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, fields
from typing import Any

from learner.config import TrainOptions
from learner.scratch import scratch_folder
from protos.errors import ConfigError, WorkerFailure
from protos.options import ENV_PREFIX

MODULE = "learner.planning.trial_process"

GRACE_SECONDS = 20.0
"""How long a process may take to end its run, its actors included."""

LOG_SECONDS = 0.5
"""Between two looks at a run: each costs the reporter some 20 ms."""

FOREVER = 10**12
"""Environment steps that no trial reaches."""


@dataclass(frozen=True)
class Setting:
    """A way to run a training. By default the batch is the user's: it says what is learned."""

    num_actors: int
    envs_per_actor: int
    inference_threads: int
    tf_threads: int
    queue_capacity: int
    batch_size: int

    @staticmethod
    def of(options: TrainOptions) -> "Setting":
        return Setting(**{entry.name: getattr(options, entry.name) for entry in fields(Setting)})

    def apply(self, options: TrainOptions) -> TrainOptions | None:
        """The options with this setting in place; None if they do not go together."""
        try:
            return dataclasses.replace(options, **asdict(self))
        except ConfigError:
            return None


@dataclass(frozen=True)
class Trial:
    """What a short run has reached at steady state."""

    setting: Setting
    seconds: float
    """of the run that were counted"""
    rate: float
    """environment steps a second; 0 if it failed"""
    policy_lag: float | None = None
    actors_idle: float | None = None
    training_busy: float | None = None
    batch: float | None = None
    """mean rows of a policy call"""
    learner_cpu: float | None = None
    actor_cpu: float | None = None
    """CPU seconds for an environment step, of the learner and of its actors; None where the system does
    not tell"""
    error: str = ""


class TrialProcess:
    """A process that runs trials one after the other, so that TensorFlow is imported once.

    A context manager. It has all TensorFlow threads that it is started with for its whole life.
    """

    def __init__(self) -> None:
        # What a run leaves behind if it is ended by force goes with this folder.
        self._closing = ExitStack()
        self.folder = self._closing.enter_context(scratch_folder())
        """Where the runs are, and whatever else they make."""
        self._runs = 0
        environ = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE, str(os.getpid())],
            env={**environ, "TMPDIR": self.folder},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C in a terminal is for the parent, which ends this process in order.
            start_new_session=True,
        )

    def __enter__(self) -> "TrialProcess":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(self, options: TrainOptions, settle_seconds: float, seconds: float) -> Trial:
        """Train for so long at steady state, `settle_seconds` after the first update.

        Raises:
            WorkerFailure: the process has ended.
        """
        self._runs += 1
        request = {
            "options": trial_options(options, f"{self.folder}/{self._runs}"),
            "settle_seconds": settle_seconds,
            "seconds": seconds,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # It has ended, and says no more.
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            status = self._process.wait()
            raise WorkerFailure(
                f"the process that runs trials ended with status {status}; its words are above"
            )
        return Trial(Setting.of(options), **json.loads(answer))

    def close(self) -> None:
        """End the run, the process and all that they have left. Idempotent."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._closing.close()


def trial_options(options: TrainOptions, logdir: str) -> dict[str, Any]:
    """The options of a trial's run, as JSON values."""
    values = {entry.name: getattr(options, entry.name) for entry in fields(TrainOptions)}
    return {
        **values,
        "logdir": logdir,
        "listen": None,
        "progress": "none",
        "total_steps": FOREVER,
        "stop_return": None,
        "eval_interval": 0,
        "stop_eval_return": None,
        "log_interval_seconds": LOG_SECONDS,
        "checkpoint_interval_seconds": 86_400.0,
        "save_replay": False,
    }


def from_json(values: Mapping[str, Any]) -> TrainOptions:
    """The options that `trial_options` has written."""
    known = {entry.name for entry in fields(TrainOptions)}
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if name in known
    }
    return TrainOptions(**given)
