"""What a client shows of itself, whom it trusts, and what it refuses to send."""

from pathlib import Path

import pytest

from actor.config import ActorOptions
from protos.credentials import Credentials
from protos.errors import ConfigError
from tests.certificates import OTHER_TOKEN, TOKEN, Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


def refused(server: str = "127.0.0.1:7777", **options: str | bool) -> str:
    with pytest.raises(ConfigError) as refusal:
        Credentials(**options).check(server)  # type: ignore[arg-type]  # by name
    return str(refusal.value)


def test_nothing_is_shown_unless_it_is_given() -> None:
    assert Credentials().metadata() == ()


def test_a_token_is_never_in_sight() -> None:
    options = ActorOptions(env="x")
    assert options.credentials(TOKEN).metadata() == (("authorization", f"Bearer {TOKEN}"),)
    assert TOKEN not in repr(options.credentials(TOKEN))


def test_the_library_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEDBED_TOKEN", TOKEN)
    assert Credentials().metadata() == ()
    assert ActorOptions(env="x").credentials().metadata() == ()


def test_the_first_token_of_a_file_is_shown_and_before_the_environments(
    authority: Authority,
) -> None:
    path = authority.tokens(TOKEN, OTHER_TOKEN)
    credentials = Credentials(token_file=path, token="that-of-the-environment")
    assert credentials.metadata() == (("authorization", f"Bearer {TOKEN}"),)
    authority.tokens(OTHER_TOKEN)
    assert credentials.metadata() == (("authorization", f"Bearer {OTHER_TOKEN}"),), "read anew"


def test_a_token_is_not_sent_over_a_network_in_plain_text(authority: Authority) -> None:
    assert refused("10.0.0.3:7777", token=TOKEN) == (
        "--server 10.0.0.3:7777: a token would travel over the network in plain text: give --tls-ca, or "
        "say --insecure where nobody else is on the network"
    )
    Credentials(token=TOKEN, insecure=True).check("10.0.0.3:7777")
    Credentials(token=TOKEN, tls_ca=authority.ca).check("10.0.0.3:7777")
    Credentials(token=TOKEN, tls_ca="system").check("10.0.0.3:7777")
    Credentials(token=TOKEN).check("127.0.0.1:7777")
    Credentials(token=TOKEN).check("unix:/tmp/x")
    Credentials().check("10.0.0.3:7777")


def test_options_that_need_each_other() -> None:
    together = "--tls-cert and --tls-key go together: give both, or none"
    assert refused(tls_ca="x", tls_key="x") == together
    assert refused(tls_ca="x", tls_cert="x") == together
    assert refused(tls_cert="x", tls_key="x") == "--tls-cert needs TLS: give --tls-ca too"


def test_files_that_cannot_be_used(authority: Authority) -> None:
    own, nonsense = authority.issue("actor"), authority.write("nonsense", b"nonsense")
    assert "expected certificates, PEM" in refused(tls_ca=nonsense)
    assert "cannot be read: No such file" in refused(tls_ca=f"{nonsense}.gone")
    other = authority.issue("other")["tls_key"]
    assert "expected a certificate and its key" in refused(
        tls_ca=authority.ca, tls_cert=own["tls_cert"], tls_key=other
    )
    Path(own["tls_key"]).chmod(0o644)
    assert "has mode 0644" in refused(tls_ca=authority.ca, **own)
    path = authority.tokens(TOKEN)
    Path(path).chmod(0o644)
    assert "has mode 0644" in refused(token_file=path)
    assert "SEEDBED_TOKEN: expected tokens of at least 16" in refused(token="x")
