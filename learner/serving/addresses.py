"""Where the learner's server listens, and what is refused of it."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from protos.errors import ConfigError
from protos.options import check_listen


@dataclass(frozen=True)
class Addresses:
    """What a server listens on, each HOST:PORT or unix:PATH."""

    listen: str
    """for all whom the server's security lets in"""
    local: str | None = None
    """one more, of this machine alone: a unix socket, which stays in plain text; tokens are asked for
    on both"""
    health: str | None = None
    """has the health check and nothing else, in plain text and without tokens: for probes that can
    bring neither"""

    def check(self) -> None:
        """Refuse what gRPC would take without a word: HOST without a port, a port beyond the last one,
        and a unix socket that another server listens on, which would lose it.

        Raises:
            ConfigError: one of them is such.
        """
        for option, address in (
            ("--listen", self.listen),
            ("--listen", self.local),
            ("--health-listen", self.health),
        ):
            if address is not None:
                _check(option, address)


@contextmanager
def owners_alone(address: str) -> Iterator[None]:
    """A unix socket that is made here gets mode 0600 from its first moment on.

    What other threads make meanwhile gets it too; at a learner's start there are none that write.
    """
    if not address.startswith("unix:"):
        yield
        return
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def _check(option: str, address: str) -> None:
    if address.startswith("unix:") and address != "unix:":
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                taken = probe.connect_ex(address.removeprefix("unix:")) == 0
            except OSError as error:  # Such as a path of more bytes than the system allows.
                raise ConfigError(
                    f"{option} {address}: expected a path for a unix socket; {error}"
                ) from error
        if taken:
            raise ConfigError(f"{option} {address}: expected a free address, found another server on it")
        return
    check_listen(option, address)
