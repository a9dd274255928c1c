"""What both sides of a protected connection share: secret files, tokens, and where they may travel."""

import ipaddress
import os
import stat

from protos.addresses import host_and_port
from protos.errors import ConfigError

TOKEN_VARIABLE = "SEEDBED_TOKEN"
"""Environment variable that holds a bearer token. No option does: command lines are public."""

AUTHORIZATION = "authorization"
"""Key of the metadata that carries a token, as in HTTP."""

MIN_TOKEN_LENGTH = 16
"""Shorter tokens can be guessed."""


MAX_SECRET_BYTES = 1 << 20
MAX_PUBLIC_BYTES = 1 << 24
"""What is larger is another file: the authorities of the whole web take 300 kB."""


def read_public(path: str, option: str) -> bytes:
    """The contents of a file that is no secret, such as a certificate.

    Raises:
        ConfigError: it cannot be read, is no regular file, or is far too large.
    """
    return _read(path, option, MAX_PUBLIC_BYTES)[0]


def read_secret(path: str, option: str) -> bytes:
    """The contents of a file that only its owner, and perhaps its group, may read.

    Raises:
        ConfigError: it cannot be read, is no regular file, is far too large, or everybody can read or
            write it.
    """
    contents, mode = _read(path, option, MAX_SECRET_BYTES)
    # The group may: Kubernetes gives a pod its secrets by its group (fsGroup).
    if mode & stat.S_IRWXO:
        raise ConfigError(
            f"{option} {path} has mode {mode:04o}, and holds a secret that others can reach: chmod o= it"
        )
    return contents


def _read(path: str, option: str, most: int) -> tuple[bytes, int]:
    """A regular file's contents and permissions. Never waits: who asks may be the event loop.

    Raises:
        ConfigError: it cannot be read, is no regular file, or has more than `most` bytes.
    """
    try:
        # What is checked is what is read, whatever the name comes to mean in between.
        with open(path, "rb", opener=_open_at_once) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise ConfigError(
                    f"{option} {path}: expected a regular file, which can be read again, found a pipe "
                    "or a device"
                )
            contents = file.read(most + 1)
    except OSError as error:
        raise _unreadable(path, option, error) from error
    if len(contents) > most:
        raise ConfigError(f"{option} {path}: expected a file of at most {most} bytes, found more")
    return contents, stat.S_IMODE(mode)


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting, for ever perhaps, for somebody to write into a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def _unreadable(path: str, option: str, error: OSError) -> ConfigError:
    return ConfigError(f"{option} {path} cannot be read: {error.strerror or error}")


def read_tokens(path: str) -> tuple[str, ...]:
    """The bearer tokens in a file: one a line; empty lines, and those that begin with #, say nothing.

    Raises:
        ConfigError: the file cannot be read or others can read it, it holds no token, or one that is
            no token.
    """
    lines = read_secret(path, "--token-file").decode(errors="replace").splitlines()
    found = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not found:
        raise ConfigError(f"--token-file {path}: expected a token a line, found none")
    for token in found:
        check_token(token, f"--token-file {path}")
    return found


def check_token(token: str, source: str) -> None:
    """Refuse what is no token; the message does not repeat it.

    Raises:
        ConfigError: it is too short, or cannot travel in a header.
    """
    if len(token) < MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"{source}: expected tokens of at least {MIN_TOKEN_LENGTH} ASCII characters without spaces, "
            "found another"
        )


def is_private(address: str) -> bool:
    """Whether an address, HOST:PORT or unix:PATH, is reached from this machine alone."""
    if address.startswith("unix:"):
        return True
    parts = host_and_port(address)
    if parts is None:
        return False
    host = parts[0]
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
