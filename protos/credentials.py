"""Who a client is, and which learner it trusts: TLS and the bearer token."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from protos.certificates import Pair, read_authorities, read_pair
from protos.errors import ConfigError
from protos.options import option
from protos.secrets import AUTHORIZATION, TOKEN_VARIABLE, check_token, is_private, read_tokens

SYSTEM = "system"
"""In place of a file: the certificates that come with gRPC, of the public authorities."""


@dataclass(frozen=True)
class ConnectionOptions:
    """Options of whoever connects to a learner."""

    server: str = option("127.0.0.1:7777", "the learner's address: HOST:PORT or unix:PATH")
    tls_ca: str | None = option(
        None,
        "certificates of whom the learner's must come from, PEM; or system, for the public "
        "authorities'; if not given, plain text",
    )
    tls_cert: str | None = option(
        None, "this client's own certificate, PEM, where the learner asks for one"
    )
    tls_key: str | None = option(
        None, "private key of --tls-cert, PEM; others must not be able to read it"
    )
    token_file: str | None = option(
        None,
        "file of the bearer token, read anew at each connection; if not given, the one in "
        "SEEDBED_TOKEN, or none",
    )
    insecure: bool = option(False, "send the token over a network in plain text")

    def credentials(self, token: str | None = None) -> "Credentials":
        """What the TLS and token options come to; `token` counts where there is no file of one.

        Files are those that the names mean now, wherever an environment moves this process to.

        Raises:
            ConfigError: they do not go together.
        """
        return Credentials(
            tls_ca=self.tls_ca if self.tls_ca == SYSTEM else _located(self.tls_ca),
            tls_cert=_located(self.tls_cert),
            tls_key=_located(self.tls_key),
            token_file=_located(self.token_file),
            insecure=self.insecure,
            token=token,
        )


@dataclass(frozen=True)
class Credentials:
    """Nothing by default: plain text, and no token.

    Files are read at each connection, so that new certificates and tokens count from the next one on.
    """

    tls_ca: str | None = None
    """PEM file of whom the learner's certificate must come from, or "system"; None for plain text"""
    tls_cert: str | None = None
    """PEM file of the client's own certificate, if the learner asks for one"""
    tls_key: str | None = None
    """PEM file of its private key"""
    token_file: str | None = None
    """file of the bearer token, the first of its lines; None for `token`"""
    insecure: bool = False
    """whether a token may travel over a network in plain text"""
    token: str | None = field(default=None, repr=False)
    """the bearer token, if it is in no file"""

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("--tls-cert and --tls-key go together: give both, or none")
        if self.tls_cert is not None and self.tls_ca is None:
            raise ConfigError("--tls-cert needs TLS: give --tls-ca too")
        if self.token is not None:
            check_token(self.token, TOKEN_VARIABLE)

    def check(self, server: str) -> None:
        """Refuse to send a token where others can read it, and files that cannot be used.

        Raises:
            ConfigError: saying which.
        """
        open_to_others = self.tls_ca is None and not is_private(server) and not self.insecure
        if self.metadata() and open_to_others:
            raise ConfigError(
                f"--server {server}: a token would travel over the network in plain text: give "
                "--tls-ca, or say --insecure where nobody else is on the network"
            )
        self._channel_credentials()

    def metadata(self) -> Sequence[tuple[str, str]]:
        """What each stream brings along.

        Raises:
            ConfigError: the token's file cannot be used.
        """
        token = self.token if self.token_file is None else read_tokens(self.token_file)[0]
        return () if token is None else ((AUTHORIZATION, f"Bearer {token}"),)

    def channel(self, server: str, options: Sequence[tuple[str, Any]]) -> grpc.aio.Channel:
        """A connection to `server`, HOST:PORT or unix:PATH.

        Raises:
            ConfigError: a file cannot be used.
        """
        credentials = self.for_channel(server)
        if credentials is None:
            return grpc.aio.insecure_channel(server, options=options)
        return grpc.aio.secure_channel(server, credentials, options=options)

    def for_channel(self, server: str) -> grpc.ChannelCredentials | None:
        """What TLS needs for a connection to `server`; None for plain text, as unix sockets have it.

        Raises:
            ConfigError: a file cannot be used.
        """
        return None if server.startswith("unix:") else self._channel_credentials()

    def _channel_credentials(self) -> grpc.ChannelCredentials | None:
        if self.tls_ca is None:
            return None
        authorities = None if self.tls_ca == SYSTEM else read_authorities(self.tls_ca, "--tls-ca")
        pair: Pair | None = None
        if self.tls_cert is not None and self.tls_key is not None:
            pair = read_pair(self.tls_cert, self.tls_key)
        return grpc.ssl_channel_credentials(
            authorities, pair.key if pair else None, pair.chain if pair else None
        )


def _located(path: str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())
