"""What gRPC's clients leave out: the alert by which TLS says that a certificate is not trusted."""

import logging
import socket
import ssl

from protos.addresses import host_and_port
from protos.credentials import SYSTEM

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 2.0


def send_alert(server: str, tls_ca: str) -> None:
    """Tell the learner why its certificate is not trusted, so that its log says so too.

    gRPC closes such a connection without a word. So here is one more, which fails in the same way, but
    with the alert. It is of TLS 1.2: an alert of 1.3, which OpenSSL leaves unencrypted, is nothing that
    gRPC's servers understand.

    Blocks for some milliseconds, at most twice the timeout. Raises nothing: it is a courtesy.

    Args:
        server: HOST:PORT.
        tls_ca: PEM file, or "system".
    """
    parts = host_and_port(server)
    if parts is None:
        return
    host, port = parts
    try:
        context = ssl.create_default_context(cafile=None if tls_ca == SYSTEM else tls_ca)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with (
            socket.create_connection((host, port), TIMEOUT_SECONDS) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            logger.debug("the learner's certificate is trusted here, but not by gRPC")
    except (OSError, ValueError) as error:
        logger.debug("told the learner: %s", error)
