"""Who learns together: a group of learner processes, as TensorFlow's own TF_CONFIG says it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protos.errors import ConfigError


@dataclass(frozen=True)
class Cluster:
    """The learners of a group, each at its own address for the others, and which of them this one is."""

    addresses: tuple[str, ...]
    """HOST:PORT of each; the first one's learner is the first learner"""
    index: int
    """of this process"""


def read_cluster(environ: Mapping[str, str]) -> Cluster | None:
    """The group that TF_CONFIG describes; None without it, or where it names one process alone.

    A "chief" is what TensorFlow also calls the first worker, and is the first learner.

    Raises:
        ConfigError: it is not what TensorFlow defines, or its task is not one that trains.
    """
    text = environ.get("TF_CONFIG", "").strip()
    if not text:
        return None
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        addresses = (*cluster.get("chief", ()), *cluster.get("worker", ()))
        before = {"chief": 0, "worker": len(cluster.get("chief", ()))}[task["type"]]
        index = before + int(task["index"])
        _check(addresses, index)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            'TF_CONFIG: expected {"cluster": {"worker": ["HOST:PORT", ...]}, '
            f'"task": {{"type": "worker", "index": N}}}}, found {text}'
        ) from error
    return Cluster(addresses, index) if len(addresses) > 1 else None


def _check(addresses: tuple[Any, ...], index: int) -> None:
    if not 0 <= index < len(addresses):
        raise ValueError(index)
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not 0 < int(port) < 65_536:
            raise ValueError(address)
