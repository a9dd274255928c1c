"""PEM files that are what they should be, and those that are not."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from protos.certificates import read_authorities, read_pair
from protos.errors import ConfigError
from tests.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


def test_a_certificate_and_its_key(authority: Authority) -> None:
    files = authority.issue("learner")
    pair = read_pair(files["tls_cert"], files["tls_key"])
    assert pair.chain == Path(files["tls_cert"]).read_bytes()
    assert pair.key == Path(files["tls_key"]).read_bytes()


def test_a_certificate_and_another_key(authority: Authority) -> None:
    certificate, key = authority.issue("learner")["tls_cert"], authority.issue("other")["tls_key"]
    with pytest.raises(ConfigError) as refused:
        read_pair(certificate, key)
    start = (
        f"--tls-cert {certificate} and --tls-key {key}: expected a certificate and its key, both PEM; "
    )
    assert str(refused.value).startswith(start)
    assert "key values mismatch" in str(refused.value)


def test_what_is_no_certificate(authority: Authority) -> None:
    nonsense = authority.write("nonsense", b"nonsense")
    with pytest.raises(ConfigError, match="expected a certificate and its key, both PEM"):
        read_pair(nonsense, authority.issue("learner")["tls_key"])


def test_an_encrypted_key_does_not_ask_for_its_password(authority: Authority) -> None:
    files = authority.issue("learner")
    key = serialization.load_pem_private_key(Path(files["tls_key"]).read_bytes(), None)
    contents = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )
    encrypted = authority.write("encrypted.key", contents)
    with pytest.raises(ConfigError, match="both PEM; the key is encrypted"):
        read_pair(files["tls_cert"], encrypted)


def test_a_key_that_others_can_read(authority: Authority) -> None:
    files = authority.issue("learner")
    Path(files["tls_key"]).chmod(0o644)
    with pytest.raises(ConfigError, match=r"--tls-key .* has mode 0644"):
        read_pair(files["tls_cert"], files["tls_key"])


def test_authorities(authority: Authority, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.pem"
    ours, theirs = Path(authority.ca), Path(Authority(tmp_path / "other").ca)
    # Bundles name whose certificates they hold, and not all names are ASCII.
    bundle.write_text(f"# Tőkehal CA\n{ours.read_text()}# b\n{theirs.read_text()}", encoding="utf-8")
    assert read_authorities(str(bundle), "--tls-ca") == bundle.read_bytes()


@pytest.mark.parametrize("contents", [b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_what_holds_no_authority(authority: Authority, contents: bytes) -> None:
    path = authority.write("nonsense", contents)
    with pytest.raises(ConfigError) as refused:
        read_authorities(path, "--tls-client-ca")
    assert str(refused.value).startswith(f"--tls-client-ca {path}: expected certificates, PEM; ")
