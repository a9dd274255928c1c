"""PEM files of TLS, checked where they are read.

gRPC takes whatever it is given, and says at each handshake, in four lines, that it cannot use it.
"""

import ssl
from typing import NamedTuple

from protos.errors import ConfigError
from protos.secrets import read_public, read_secret


class Pair(NamedTuple):
    """A certificate, with those of its authorities if there are any between, and its private key."""

    chain: bytes
    key: bytes


def read_pair(certificate: str, key: str) -> Pair:
    """The contents of the files of --tls-cert and --tls-key.

    Raises:
        ConfigError: one cannot be read, others can read the key, or they are no certificate and its
            unencrypted key.
    """
    pair = Pair(read_public(certificate, "--tls-cert"), read_secret(key, "--tls-key"))
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            certificate, key, password=_refuse_password
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--tls-cert {certificate} and --tls-key {key}: expected a certificate and its key, "
            f"both PEM; {error}"
        ) from error
    return pair


def read_authorities(path: str, option: str) -> bytes:
    """The contents of a file of certificates, from one of which others must come.

    Raises:
        ConfigError: it cannot be read, or holds no certificate.
    """
    contents = read_public(path, option)
    try:
        # Bundles name whose certificates they hold, and not all names are ASCII.
        text = contents.decode("ascii", errors="backslashreplace")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{option} {path}: expected certificates, PEM; {error}") from error
    return contents


def _refuse_password() -> bytes:
    raise ValueError("the key is encrypted")
