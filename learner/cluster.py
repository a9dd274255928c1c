"""Who learns together: a group of learner processes, as TensorFlow's own TF_CONFIG says it."""

import json
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from protos.addresses import host_and_port
from protos.errors import ConfigError

PROBE_SECONDS = 0.2
"""Between two looks for the others."""


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


def wait_for_others(cluster: Cluster, stopped: Callable[[], bool]) -> bool:
    """Wait until every learner of the cluster has been seen at its address, and meanwhile be seen.

    TensorFlow would wait by itself, but with the interpreter's lock in its hands: no signal would be
    heard, and no health check answered.

    Returns:
        False if `stopped` said, meanwhile, that this learner is to end.

    Raises:
        ConfigError: its own address cannot be used.
    """
    own = cluster.addresses[cluster.index]
    missing = set(cluster.addresses) - {own}
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        listener = socket.create_server(("", _parts(own)[1]), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise ConfigError(
            f"TF_CONFIG: {own} cannot be listened on: {error.strerror or error}"
        ) from error
    # Whoever looks for this learner after that finds TensorFlow's own server.
    with listener:
        while missing and not stopped():
            missing = {address for address in missing if not _is_there(address)}
            if missing:
                # Sockets of other machines, which nothing announces.
                time.sleep(PROBE_SECONDS)
    return not stopped()


def _is_there(address: str) -> bool:
    try:
        socket.create_connection(_parts(address), timeout=1.0).close()
    except OSError:
        return False
    return True


def _check(addresses: tuple[Any, ...], index: int) -> None:
    if not 0 <= index < len(addresses):
        raise ValueError(index)
    for address in addresses:
        if _parts(address)[1] == 0:
            raise ValueError(address)


def _parts(address: str) -> tuple[str, int]:
    parts = host_and_port(address)
    if parts is None:
        raise ValueError(address)
    return parts
