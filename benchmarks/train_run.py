"""One run of `seedbed train`, watched from outside through its metrics.jsonl."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from benchmarks.measure import Meter, Window
from learner.config import TrainOptions
from protos.errors import WorkerFailure
from protos.options import ENV_PREFIX

START_SECONDS = 120.0
"""Longest time to the first step, and between two lines of metrics."""

POLL_SECONDS = 0.02

WATCHING = "watching"
"""This process in a window: its CPU time is no part of the run's."""

CHOSEN_HERE = frozenset({"logdir", "progress"})


class Rates(NamedTuple):
    """What a run did in its window."""

    steps_per_second: float
    """environment steps"""
    trained_ratio: float
    """rows trained on, for each row sampled"""
    trained_ratio_resolution: float
    """how far the ratio of so short a window may be off, because unrolls are trained on whole"""
    cpu_seconds_per_million: float
    """CPU seconds of the learner and its actors, for a million environment steps"""
    mean_batch: float
    """rows of a policy call"""
    policy_lag: float | None
    training_busy: float
    inference_busy: float
    actors_idle: float | None


def measure_run(options: TrainOptions, drop_seconds: float, seconds: float) -> tuple[Rates, Window]:
    """Start a run, let it settle for `drop_seconds` from its first step, and watch it for `seconds`.

    Raises:
        WorkerFailure: it ended, or stood still.
    """
    with tempfile.TemporaryDirectory(prefix="seedbed-") as folder:
        with _started(options, Path(folder)) as lines:
            first = next(line for line in lines if line["env_steps"] > 0)
            start = next(line for line in lines if line["seconds"] >= first["seconds"] + drop_seconds)
            meter = Meter({WATCHING: [os.getpid()]})
            middle = []
            for line in lines:
                middle.append(line)
                if line["seconds"] >= start["seconds"] + seconds:
                    break
            window = meter.stop()
        return rates(options, [start, *middle], window), window


def rates(options: TrainOptions, lines: list[Mapping[str, Any]], window: Window) -> Rates:
    """What happened between the first and the last of these lines of metrics.jsonl."""
    before, after = lines[0], lines[-1]
    elapsed = after["seconds"] - before["seconds"]
    steps = after["env_steps"] - before["env_steps"]
    # Every episode brings one row to which no step led: its first.
    sampled = steps + after["episodes"] - before["episodes"]
    updates = after["policy_version"] - before["policy_version"]
    batches = after["acting/batches"] - before["acting/batches"]
    steps_per_second = steps / elapsed
    spent = window.own_cpu_seconds - window.cpu_seconds[WATCHING]
    return Rates(
        steps_per_second=steps_per_second,
        trained_ratio=updates * options.unroll_length * options.batch_size / sampled,
        # Environments finish their unrolls together, and an update is on a whole batch of them.
        trained_ratio_resolution=options.unroll_length
        * (options.num_actors * options.envs_per_actor + options.batch_size)
        / sampled,
        # Rates, because the meter's window begins and ends a moment after the lines were written.
        cpu_seconds_per_million=spent / window.seconds / steps_per_second * 1e6,
        mean_batch=(after["acting/rows"] - before["acting/rows"]) / batches,
        policy_lag=_mean([line["policy_lag"] for line in lines[1:]]),
        training_busy=_mean([line["training_busy"] for line in lines[1:]]) or 0.0,
        inference_busy=_mean([line["inference_busy"] for line in lines[1:]]) or 0.0,
        actors_idle=_mean([line["actors_idle"] for line in lines[1:]]),
    )


def command_options(options: TrainOptions) -> dict[str, Any]:
    """The options of `seedbed train` alone, as its configuration file holds them."""
    known = {entry.name for entry in fields(TrainOptions)} - CHOSEN_HERE
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(options).items()
        if name in known and value is not None
    }


@contextmanager
def _started(options: TrainOptions, folder: Path) -> Iterator[Iterator[Mapping[str, Any]]]:
    """The lines of a run's metrics.jsonl as they come; the run ends with the block."""
    config, logdir, log = folder / "options.toml", folder / "run", folder / "log"
    config.write_text(tomli_w.dumps(command_options(options)))
    command = [sys.executable, "-m", "learner", "train", f"--config={config}", f"--logdir={logdir}"]
    # The environment's variables would win over the file.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    with log.open("wb") as errors:
        run = subprocess.Popen(
            [*command, "--progress=none"], env=environ, stdin=subprocess.DEVNULL, stderr=errors
        )
    try:
        yield _lines(run, logdir / "metrics.jsonl", log)
    finally:
        run.terminate()
        try:
            run.wait(30.0)
        except subprocess.TimeoutExpired:
            run.kill()
            run.wait()


def _lines(run: "subprocess.Popen[bytes]", path: Path, log: Path) -> Iterator[Mapping[str, Any]]:
    seen, deadline = 0, time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        text = path.read_text() if path.exists() else ""
        # A line is whole once its end is there.
        whole = text.split("\n")[:-1]
        for line in whole[seen:]:
            deadline = time.monotonic() + START_SECONDS
            yield json.loads(line)
        seen = len(whole)
        if run.poll() is not None:
            raise WorkerFailure(f"the run ended with status {run.returncode}:\n{log.read_text()}")
        time.sleep(POLL_SECONDS)
    raise WorkerFailure(f"expected steps within {START_SECONDS:g} s:\n{log.read_text()}")


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
