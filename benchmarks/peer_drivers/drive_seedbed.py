"""Drives seedbed: starts `seedbed train` and reads the metrics.jsonl that it writes.

    python -m benchmarks.peer_drivers.drive_seedbed SETTINGS

`extra`: options of `seedbed train` that win over those that follow from the settings; None leaves an
option at its default. `algorithm` among them is only the table's name of it.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.peer_drivers import records
from benchmarks.peer_drivers.say import Readings, say
from benchmarks.peer_drivers.settings import HIDDEN_SIZES, LSTM_SIZE, Settings

POLL_SECONDS = 0.05


def options(settings: Settings) -> dict[str, Any]:
    """Options of `seedbed train`, by name."""
    values: dict[str, Any] = {
        "env": f"benchmarks.peer_drivers.vector_env:{settings.workload.lower()}",
        "seed": settings.seed,
        "num_actors": settings.actors,
        "envs_per_actor": settings.envs_per_actor,
        "unroll_length": settings.unroll_length,
        "batch_size": settings.batch_steps // settings.unroll_length,
        "learning_rate": settings.learning_rate,
        "learning_rate_schedule": "constant",
        "discount": settings.discount,
        "trace_lambda": settings.trace_lambda,
        "clip_gradient_norm": settings.gradient_clip,
        "entropy_cost": settings.entropy_cost,
        "value_cost": settings.value_cost,
        "optimizer": "adam",
        "optimizer_epsilon": settings.adam_epsilon,
        "torso": "shallow" if settings.images else "mlp",
        "hidden_sizes": list(HIDDEN_SIZES),
        "frame_stack": 4 if settings.images else 1,
        "lstm_size": LSTM_SIZE if settings.recurrent else 0,
        "tf_threads": settings.threads,
        "total_steps": 10**12,
        "log_interval_seconds": 0.25,
        **settings.extra,
    }
    return {name: v for name, v in values.items() if v is not None and name != "algorithm"}


def command(values: Mapping[str, Any], logdir: Path) -> list[str]:
    """The command line of the run."""
    run = [sys.executable, "-m", "learner", "train", *(_flag(*item) for item in values.items())]
    return [*run, f"--logdir={logdir}", "--progress=none"]


def _flag(name: str, value: Any) -> str:
    name = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name}={json.dumps(value) if isinstance(value, list) else value}"


def trained_steps(line: Mapping[str, Any], unroll_length: int, batch_size: int) -> float:
    """Agent steps that the run has trained on: rows, less their part that no step led to."""
    rows = line["policy_version"] * unroll_length * batch_size
    recorded = line["env_steps"] + line["episodes"]
    return float(rows * line["env_steps"] / recorded) if recorded else 0.0


def lines(run: "subprocess.Popen[bytes]", path: Path) -> Iterator[dict[str, Any]]:
    """Lines of metrics.jsonl as they come, until the run ends."""
    rest, position = "", 0
    while run.poll() is None:
        if path.exists():
            with path.open() as file:
                file.seek(position)
                rest += file.read()
                position = file.tell()
        *whole, rest = rest.split("\n")
        yield from map(json.loads, whole)
        # Another process's file: there is nothing to wait on.
        time.sleep(POLL_SECONDS)


def main() -> None:
    settings = Settings.from_json(sys.argv[1])
    values = options(settings)
    unroll, batch = values.get("unroll_length", 16), values.get("batch_size", 8)
    with tempfile.TemporaryDirectory() as folder:
        logdir = Path(folder) / "run"
        run = subprocess.Popen(command(values, logdir), stdin=subprocess.DEVNULL)
        say(parameters=None, transport="unix socket")
        readings = Readings(records.folder())
        for line in lines(run, logdir / "metrics.jsonl"):
            trained = trained_steps(line, unroll, batch)
            readings.add(trained, line["policy_version"], line["policy_lag"])
        raise SystemExit(f"seedbed train ended with status {run.returncode}")


if __name__ == "__main__":
    main()
