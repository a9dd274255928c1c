"""A run directory as others read it: its options, its newest checkpoint, its policy; and its export.

The run's learner may be at work meanwhile.
"""

import logging
import shutil
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from google.protobuf import json_format

from learner.config import ExportOptions, LearnerOptions
from learner.telemetry.logs import import_tensorflow
from learner.telemetry.run_directory import best_checkpoint_folder, checkpoints_folder, read_config
from learner.training.checkpoint import Checkpoint, Checkpoints
from protos import inference_pb2 as pb
from protos import specs
from protos.errors import ConfigError
from protos.specs import EnvironmentSpec

if TYPE_CHECKING:
    from learner.agents.agent import Policy

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredRun:
    """A run directory, read without holding it: its learner may be running."""

    options: LearnerOptions
    checkpoint: Checkpoint
    spec: EnvironmentSpec


def read_run(logdir: str, which: Literal["newest", "best"] = "newest") -> StoredRun:
    """The run in `logdir` with its newest checkpoint, or that which did best in an evaluation.

    Raises:
        ConfigError: there is no run, or it has no checkpoint yet.
        CheckpointError: its checkpoints are damaged.
    """
    path = Path(logdir)
    values = read_config(path)
    known = {entry.name for entry in fields(LearnerOptions)}
    plain: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if name in known
    }
    try:
        options = LearnerOptions(**plain)
    except TypeError as error:
        raise ConfigError(f"{path / 'config.toml'} holds a value of a wrong type: {error}") from error
    folder = checkpoints_folder(path) if which == "newest" else best_checkpoint_folder(path)
    checkpoint = Checkpoints(folder, options.keep_checkpoints).load_latest()
    if checkpoint is None and which == "best":
        raise ConfigError(
            f"--checkpoint best: the run in {path} has no evaluation yet; --eval-interval makes them"
        )
    if checkpoint is None:
        raise ConfigError(f"--logdir {path}: this run has no checkpoint yet")
    message = json_format.ParseDict(checkpoint.require("spec"), pb.EnvironmentSpec())
    return StoredRun(options, checkpoint, specs.from_proto(message))


def load_policy(run: StoredRun) -> "Policy":
    """The run's policy with the checkpoint's weights."""
    import_tensorflow()
    from learner.agents.build import make_agent
    from learner.training.restore import restore_agent

    agent = make_agent(run.options, run.spec, seed=run.options.seed)
    restore_agent(agent, run.checkpoint)
    return agent.policy


def export(options: ExportOptions) -> int:
    """Write the policy as a SavedModel: whole, or not at all."""
    out = Path(options.out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {out}: expected a new or empty folder")
    run = read_run(options.logdir, options.checkpoint)
    policy = load_policy(run)
    import tensorflow as tf

    from learner.training.export import export_policy

    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as unfinished:
        try:
            export_policy(policy, run.spec, Path(unfinished))
        except tf.errors.OpError as error:
            raise ConfigError(f"--out {out} cannot be written: {error.message}") from None
        if out.exists():
            out.rmdir()
        shutil.copytree(unfinished, out)
    logger.info("version %s of %s is in %s", run.checkpoint.version, options.logdir, out)
    return 0
