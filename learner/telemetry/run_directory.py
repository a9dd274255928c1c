"""The run directory: everything that a run leaves behind, under one lock."""

import errno
import json
import logging
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w

from learner.config import LearnerOptions, resume_differences
from learner.telemetry.atomic import TEMPORARY_SUFFIX, replace_file
from learner.telemetry.evaluations import Evaluation
from learner.telemetry.file_lock import lock_file, this_process
from learner.telemetry.learning_curve import Curve
from learner.telemetry.metrics_log import MetricsLog, last_value
from learner.telemetry.report import Report
from learner.telemetry.summary import Summary
from learner.telemetry.tensorboard import TensorBoardWriter
from protos.errors import ConfigError

logger = logging.getLogger(__name__)

CONFIG = "config.toml"
CHECKPOINTS = "checkpoints"
BEST_CHECKPOINT = "best_checkpoint"
OFFENDING_BATCH = "offending_batch.npz"
"""What the last update was to learn from, where too many in a row were skipped."""
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
LOCK = ".lock"


class RunDirectory:
    """A run's directory, held by this process alone until `close`.

    `resumed` says whether an earlier process of the same run made steps here. Where the disk is full or
    fails, metrics, events and the learning curve are lost with a loud warning, and the run goes on;
    the summary raises.
    """

    def __init__(self, path: Path, options: LearnerOptions) -> None:
        """Create `path`, or go on with the run in it, and write the resolved `options`.

        Raises:
            ConfigError: another learner runs there, it holds a run with other settings or no run at
                all, or it cannot be written to.
        """
        self.path = path
        self.options = options
        self._refuse_foreign()
        # What this process makes, it may remove again.
        self._made = [each for each in (path, *path.parents) if not each.exists()]
        self._new = not (path / CONFIG).exists()
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._holder = this_process()
            self._lock = lock_file(path / LOCK, self._in_use)
            try:
                self.resumed = self._has_steps()
                self._check_settings()
                # First of all: it is what makes this directory a run's, should the process end here.
                _write_config(path / CONFIG, options)
                self.checkpoints.mkdir(exist_ok=True)
                self._metrics = MetricsLog(path / METRICS)
            except BaseException:
                self._lock.close()
                raise
        except OSError as error:
            raise ConfigError(f"--logdir {path} cannot be used: {error}") from error
        self._events: TensorBoardWriter | None = None
        self._curve_failed = False

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return checkpoints_folder(self.path)

    @property
    def best_checkpoint(self) -> Path:
        """Folder of the checkpoint that did best in an evaluation."""
        return best_checkpoint_folder(self.path)

    def check(self) -> None:
        """See to it that `path` is still the directory that this process holds.

        Raises:
            OSError: it was deleted, moved or unmounted, and what is written now would be in nobody's
                way at best; or another learner runs in a new one of the same name.
        """
        if not (self.path / CONFIG).exists():
            raise OSError(
                errno.ENOENT, f"{self.path} holds no {CONFIG} any more: was it deleted or unmounted?"
            )
        # Not by the file's identity, which network file systems change; a lock that somebody has
        # deleted harms nobody as long as there is no other.
        with suppress(FileNotFoundError):
            holder = (self.path / LOCK).read_text(errors="replace").strip()
            if holder != self._holder:
                raise OSError(
                    errno.EBUSY, f"{self.path} is now that of the learner with process id {holder}"
                )

    def write_metrics(self, report: Report, values: Mapping[str, Any]) -> None:
        """Append `values` to metrics.jsonl and to the TensorBoard events. A sink of the reporter."""
        self._metrics.write(values)
        if self._events is None:
            self._events = TensorBoardWriter(self.path / "tensorboard")
        self._events.write(report.env_steps, values)

    def write_learning_curve(self, curve: Curve, evaluations: Sequence[Evaluation] = ()) -> None:
        """Replace learning_curve.png."""
        # Imported here: it takes half a second, which evaluating a run should not cost.
        from learner.telemetry.plot import write_learning_curve

        title = f"{self.options.agent} on {self.options.env or 'its environment'}"
        title += f", seed {self.options.seed}"
        try:
            self.check()
            write_learning_curve(
                self.path / "learning_curve.png",
                curve,
                title=title,
                evaluations=evaluations,
                stop_return=self.options.stop_return,
            )
        except OSError as error:
            if not self._curve_failed:
                logger.error("learning_curve.png cannot be written: %s", error)
            self._curve_failed = True

    def write_summary(self, summary: Summary) -> None:
        """Replace summary.json.

        Raises:
            OSError: it cannot be written.
        """
        self.check()
        with replace_file(self.path / SUMMARY) as file:
            file.write(json.dumps(asdict(summary), indent=2, allow_nan=False).encode() + b"\n")

    def discard_unused(self) -> None:
        """Remove what this process made, if no run has begun: where a start is refused, nothing is left
        of it. Before `close`."""
        if not self._new or self._has_results() or (self.path / SUMMARY).exists():
            return
        # What cannot be removed stays: it is in nobody's way. So do folders with files of others.
        with suppress(OSError):
            for name in (CONFIG, METRICS):
                (self.path / name).unlink(missing_ok=True)
            self.checkpoints.rmdir()
            if self.path in self._made:
                (self.path / LOCK).unlink(missing_ok=True)
            for folder in self._made:
                folder.rmdir()

    def close(self) -> None:
        """Release the directory. Idempotent."""
        self._metrics.close()
        if self._events is not None:
            self._events.close()
        self._lock.close()

    def _in_use(self, holder: str) -> ConfigError:
        return ConfigError(
            f"--logdir {self.path} is in use by the learner with process id {holder}: end that one "
            "first, or give this run a --logdir of its own"
        )

    def _refuse_foreign(self) -> None:
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise ConfigError(f"--logdir {self.path}: expected a directory, found a file")
        found = sorted(entry.name for entry in self.path.iterdir() if not _is_ours(entry.name))
        if found and CONFIG not in found:
            raise ConfigError(
                f"--logdir {self.path}: expected a new or empty directory, or one that holds a run "
                f"({CONFIG}); found {', '.join(found[:3])}{' and more' if len(found) > 3 else ''}"
            )

    def _has_results(self) -> bool:
        """Whether the run left anything: one that was refused at its start did not."""
        metrics = self.path / METRICS
        return (metrics.exists() and metrics.stat().st_size > 0) or self._has_checkpoints()

    def _has_checkpoints(self) -> bool:
        return self.checkpoints.is_dir() and any(self.checkpoints.iterdir())

    def _has_steps(self) -> bool:
        """Whether the run made a step: one to which no actor came did not."""
        return self._has_checkpoints() or last_value(self.path / METRICS, "env_steps") > 0

    def _check_settings(self) -> None:
        if self._new:
            return
        differences = resume_differences(read_config(self.path), self.options)
        if differences and self._has_results():
            raise ConfigError(
                f"--logdir {self.path} holds a run with other settings: {'; '.join(differences)}. "
                "Give this run a --logdir of its own, or go on with the old settings: "
                f"--config {self.path / CONFIG}"
            )


def checkpoints_folder(path: Path) -> Path:
    """Folder of the checkpoints of the run in `path`; needs no lock."""
    return path / CHECKPOINTS


def best_checkpoint_folder(path: Path) -> Path:
    """Folder of the best checkpoint of the run in `path`; needs no lock."""
    return path / BEST_CHECKPOINT


def read_config(path: Path) -> dict[str, Any]:
    """The options of the run in `path`, by name; needs no lock. An option that was None is missing.

    Raises:
        ConfigError: there is no run, or its options cannot be read.
    """
    try:
        text = (path / CONFIG).read_text(encoding="utf-8")
        if not text.strip():
            raise ValueError("it is empty")
        return tomllib.loads(text)
    except FileNotFoundError as error:
        raise ConfigError(f"--logdir {path}: expected a run, found no {CONFIG}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path / CONFIG} cannot be read: {error}") from error


def _write_config(path: Path, options: LearnerOptions) -> None:
    # TOML has no null: a missing option is None when it is read back.
    values = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(options).items()
        if value is not None
    }
    with replace_file(path) as file:
        tomli_w.dump(values, file)


def _is_ours(name: str) -> bool:
    """Whether a crash before the first `config.toml` may have left a file of this name."""
    return name == LOCK or (name.startswith(".") and name.endswith(TEMPORARY_SUFFIX))
