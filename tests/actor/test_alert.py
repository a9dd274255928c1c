"""The alert that tells a learner that its certificate is not trusted."""

import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from actor.alert import send_alert
from tests.certificates import LONG_AGO, Authority


def heard(files: dict[str, str], tls_ca: str) -> str | None:
    """Why the handshake failed, on the side that shows this certificate; None if it did not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["tls_cert"], files["tls_key"])

    def serve() -> str | None:
        connection, _ = listener.accept()
        try:
            context.wrap_socket(connection, server_side=True).close()
        except ssl.SSLError as error:
            return error.reason
        finally:
            connection.close()
        return None

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        result = pool.submit(serve)
        send_alert(f"127.0.0.1:{listener.getsockname()[1]}", tls_ca)
        return result.result()


def test_the_other_side_hears_why(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    assert heard(theirs.issue("learner"), ours.ca) == "TLSV1_ALERT_UNKNOWN_CA"
    assert heard(ours.issue("old", **LONG_AGO), ours.ca) == "SSLV3_ALERT_CERTIFICATE_EXPIRED"
    assert heard(ours.issue("elsewhere", "example.org"), ours.ca) == "SSLV3_ALERT_BAD_CERTIFICATE"
    assert heard(ours.issue("learner"), "system") == "TLSV1_ALERT_UNKNOWN_CA"
    assert heard(ours.issue("learner"), ours.ca) is None


@pytest.mark.parametrize("server", ["127.0.0.1:1", "[::1]:1", "127.0.0.1:x", "127.0.0.1"])
def test_where_nobody_listens_nothing_happens(server: str, tmp_path: Path) -> None:
    send_alert(server, Authority(tmp_path / "ours").ca)


def test_without_its_file_nothing_happens(tmp_path: Path) -> None:
    send_alert("127.0.0.1:1", f"{tmp_path}/gone.pem")
