"""Who may talk to the learner: TLS certificates and tokens, read again when their files change."""

import hmac
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import grpc
from grpc_health.v1 import health

from learner.config import LearnerOptions
from learner.serving.rpc import Rpc
from learner.serving.sparing import SparingLog
from protos.certificates import read_authorities, read_pair
from protos.errors import ConfigError, RequestError, Unauthenticated
from protos.secrets import AUTHORIZATION, TOKEN_VARIABLE, check_token, is_private, read_tokens

logger = logging.getLogger(__name__)

Contents = TypeVar("Contents")


class Watched(Generic[Contents]):
    """What some files hold, read again when they have changed.

    A change that cannot be used is logged once, and leaves what was before in force. Any thread may
    ask: gRPC's own do, at handshakes. `_lock` guards what was seen and read last.
    """

    def __init__(self, paths: Sequence[str], read: Callable[[], Contents]) -> None:
        """Read the files.

        Raises:
            ConfigError: they cannot be used.
        """
        self._paths = paths
        self._read = read
        self._lock = threading.Lock()
        self._seen = self._signature()
        self._contents = read()

    def get(self) -> Contents:
        """The newest contents that are of use."""
        with self._lock:
            # Before it is read: a change in between is a change again.
            signature = self._signature()
            if signature != self._seen:
                self._seen = signature
                try:
                    self._contents = self._read()
                    logger.info("%s: read again", ", ".join(self._paths))
                except ConfigError as error:
                    logger.error("%s; what was read before stays in force", error)
            return self._contents

    def _signature(self) -> list[tuple[int, ...] | None]:
        return [_identity(path) for path in self._paths]


def _identity(path: str) -> tuple[int, ...] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    # Kubernetes changes a secret by pointing a link elsewhere: another inode.
    return found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode


class Tokens:
    """The bearer tokens that are accepted: those of a file, and some that never change."""

    def __init__(self, path: str | None, fixed: Iterable[str] = ()) -> None:
        """Read the file, if there is one.

        Raises:
            ConfigError: a token or the file cannot be used.
        """
        self._fixed = tuple(fixed)
        self._file = Watched([path], lambda: read_tokens(path)) if path else None

    def __bool__(self) -> bool:
        return bool(self._fixed or self._file)

    def accept(self, metadata: Mapping[str, str | bytes]) -> bool:
        """Whether a call's metadata carries one of the tokens."""
        found = metadata.get(AUTHORIZATION, "")
        if isinstance(found, bytes):
            return False
        kind, _, token = found.partition(" ")
        tokens = self._fixed + (self._file.get() if self._file else ())
        # All are compared, each in constant time: how long it takes tells nothing of any.
        matches = [hmac.compare_digest(token.encode(), each.encode()) for each in tokens]
        return kind.lower() == "bearer" and any(matches)


class TokenGuard:
    """Refuses every call without a token but health checks, whose probes have none."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._log = SparingLog(logger)
        self.refused = 0
        """calls so far"""

    def refusal(self, rpc: Rpc) -> RequestError | None:
        """Why the call is refused, whatever kind of call it is; None if it is not."""
        is_health_check = rpc.method.startswith(f"/{health.SERVICE_NAME}/")
        if not self._tokens or is_health_check or self._tokens.accept(rpc.metadata):
            return None
        self.refused += 1
        found = "another" if AUTHORIZATION in rpc.metadata else "none"
        error = Unauthenticated(
            f"expected a bearer token that this learner knows, found {found}: give the actor "
            f"--token-file, or {TOKEN_VARIABLE}"
        )
        self._log.log(logging.WARNING, f"token: {found}", "%s: refused: %s", rpc.peer(), error)
        return error


class ServerSecurity:
    """How a learner's addresses are protected."""

    def __init__(
        self, options: LearnerOptions, *, local_token: str | None = None, environ: Mapping[str, str]
    ) -> None:
        """Read the files that the options name.

        Args:
            options: TLS, tokens, address.
            local_token: of the actors that the learner starts itself.
            environ: may hold a token.

        Raises:
            ConfigError: a file cannot be used, or an address would be open to strangers.
        """
        given = environ.get(TOKEN_VARIABLE)
        if given is not None:
            check_token(given, TOKEN_VARIABLE)
        chosen = options.token_file is not None or given is not None
        fixed = [token for token in (given, local_token if chosen else None) if token is not None]
        self.tokens = Tokens(options.token_file, fixed)
        self._files = options.tls_cert, options.tls_key, options.tls_client_ca
        self._certificates = (
            Watched([path for path in self._files if path], self._read_certificates)
            if options.tls_cert
            else None
        )
        _check_open(options, protected=chosen and self._certificates is not None)

    def guard(self) -> TokenGuard:
        """For the server."""
        return TokenGuard(self.tokens)

    def credentials(self) -> grpc.ServerCredentials | None:
        """For the addresses on the network; None for plain text."""
        if self._certificates is None:
            return None
        changes = _Changes(self._certificates)
        return grpc.dynamic_ssl_server_credentials(changes.used, changes, self._files[2] is not None)

    def _read_certificates(self) -> Any:
        certificate, key, client_ca = self._files
        assert certificate is not None
        assert key is not None
        pair = read_pair(certificate, key)
        roots = read_authorities(client_ca, "--tls-client-ca") if client_ca else None
        return grpc.ssl_server_certificate_configuration([(pair.key, pair.chain)], roots)


class _Changes:
    """What gRPC asks for new certificates at each handshake: None for no change.

    gRPC changes over without a lock, beside handshakes in other threads: given the same each time, it
    crashed. `_lock` guards what it uses.
    """

    def __init__(self, certificates: Watched[Any]) -> None:
        self.used = certificates.get()
        """what was given out last"""
        self._certificates = certificates
        self._lock = threading.Lock()

    def __call__(self) -> Any:
        with self._lock:
            former, self.used = self.used, self._certificates.get()
            return None if self.used is former else self.used


def _check_open(options: LearnerOptions, *, protected: bool) -> None:
    listen = options.listen
    if listen is None or is_private(listen) or protected or options.insecure:
        return
    raise ConfigError(
        f"--listen {listen} can be reached from other machines: give --tls-cert and --tls-key, and "
        f"--token-file (or {TOKEN_VARIABLE}), or say --insecure where nobody else is on the network"
    )
