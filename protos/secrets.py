"""What both sides of a protected connection share: secret files, tokens, and where they may travel."""

import ipaddress
import os
import stat
from pathlib import Path

from protos.addresses import host_and_port
from protos.errors import ConfigError

TOKEN_VARIABLE = "SEEDBED_TOKEN"
"""Environment variable that holds a bearer token. No option does: command lines are public."""

AUTHORIZATION = "authorization"
"""Key of the metadata that carries a token, as in HTTP."""

MIN_TOKEN_LENGTH = 16
"""Shorter tokens can be guessed."""


def read_public(path: str, option: str) -> bytes:
    """The contents of a file that is no secret, such as a certificate.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise _unreadable(path, option, error) from error


def read_secret(path: str, option: str) -> bytes:
    """The contents of a file that only its owner, and perhaps its group, may read.

    Raises:
        ConfigError: it cannot be read, or everybody can read or write it.
    """
    try:
        # What is checked is what is read, whatever the name comes to mean in between.
        with Path(path).open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            contents = file.read()
    except OSError as error:
        raise _unreadable(path, option, error) from error
    # The group may: Kubernetes gives a pod its secrets by its group (fsGroup).
    if mode & stat.S_IRWXO:
        raise ConfigError(
            f"{option} {path} has mode {mode:04o}, and holds a secret that others can reach: chmod o= it"
        )
    return contents


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
