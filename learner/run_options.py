"""A run's options as one process takes them: with absolute paths, and as its place in a group wants."""

import dataclasses
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from learner.cluster import Cluster
from learner.config import LearnerOptions, resume_differences
from protos.errors import ConfigError

if TYPE_CHECKING:
    from learner.group import Group

_FILES = ("tls_cert", "tls_key", "tls_client_ca", "token_file", "record")
"""Options that name a file of the user's."""


def located(options: LearnerOptions) -> LearnerOptions:
    """The options with absolute paths: what is stored of them is good from any working directory."""
    env, logdir = options.env, Path(options.logdir or _new_logdir(options)).absolute()
    if env is not None and ".py:" in env:
        path, _, name = env.rpartition(":")
        env = f"{Path(path).absolute()}:{name}"
    files: dict[str, Any] = {name: _absolute(getattr(options, name)) for name in _FILES}
    return dataclasses.replace(options, env=env, logdir=str(logdir), **files)


def of_group(options: LearnerOptions, cluster: Cluster) -> LearnerOptions:
    """The options of one learner of a group.

    All but the first have a seed and a run directory of their own, and evaluate nothing: the first
    one's weights are the same.

    Raises:
        ConfigError: these options are for one learner alone.
    """
    if options.replays:
        raise ConfigError(
            f"--agent {options.agent} is for one learner: those of a group (TF_CONFIG) share no replay. "
            "Choose --agent vtrace, ppo or a2c, or unset TF_CONFIG"
        )
    if options.reproducible:
        raise ConfigError(
            "--reproducible is for one learner: which steps those of a group (TF_CONFIG) make before "
            "they meet differs from run to run. Leave one of the two out"
        )
    index = cluster.index
    if index == 0:
        return options
    own: dict[str, Any] = {
        name: f"{value}-learner-{index}"
        for name in ("logdir", "record")
        if (value := getattr(options, name)) is not None
    }
    seed = derived_seed(options.seed, index)
    return dataclasses.replace(options, seed=seed, eval_interval=0, stop_eval_return=None, **own)


def check_alike(options: LearnerOptions, group: "Group") -> None:
    """Compare these options with those of the group's first learner. All of the group call it.

    Raises:
        ConfigError: they differ in what is learned.
    """
    settings = json.loads(group.text_from_first(json.dumps(dataclasses.asdict(options))))
    # Each has its own, see `of_group`.
    settings["seed"] = options.seed
    if differences := resume_differences(settings, options):
        raise ConfigError(
            f"learner {group.index} has other settings than the first of its group: "
            f"{'; '.join(differences)}. Give all of them the same"
        )


def derived_seed(seed: int, *path: int) -> int:
    """A seed of its own for each `path`, that nobody else of the run uses: 0 to 2^31 - 1."""
    return int(np.random.SeedSequence([seed, *path]).generate_state(1)[0] >> 1)


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())


def _new_logdir(options: LearnerOptions) -> str:
    env = re.sub(r"[^A-Za-z0-9._-]+", "-", options.env or "run")
    return f"runs/{env}-{options.agent}-{time.strftime('%Y%m%d-%H%M%S')}"
