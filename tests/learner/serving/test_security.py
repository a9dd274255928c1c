"""How a learner's address is protected: what is refused at the start, and what is read again later."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from learner.config import LearnerOptions
from learner.serving.security import ServerSecurity, Tokens, Watched
from protos.errors import ConfigError
from tests.certificates import OTHER_TOKEN, TOKEN, Authority
from tests.fakes import LogLines


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


def security(environ: Mapping[str, str] | None = None, **options: Any) -> ServerSecurity:
    return ServerSecurity(LearnerOptions(**options), environ=environ or {})


def refused(environ: Mapping[str, str] | None = None, **options: Any) -> str:
    with pytest.raises(ConfigError) as refusal:
        security(environ, **options)
    return str(refusal.value)


# Which addresses need it ------------------------------------------------------------------------


@pytest.mark.parametrize("listen", ["0.0.0.0:7777", "[::]:7777", "10.0.0.3:0", "learner.example:7777"])
def test_an_open_address_needs_tls_and_a_token_or_insecure(authority: Authority, listen: str) -> None:
    tls = authority.issue("learner")
    message = (
        f"--listen {listen} can be reached from other machines: give --tls-cert and --tls-key, and "
        "--token-file (or SEEDBED_TOKEN), or say --insecure where nobody else is on the network"
    )
    assert refused(listen=listen) == message
    assert refused(listen=listen, **tls) == message
    assert refused({"SEEDBED_TOKEN": TOKEN}, listen=listen) == message
    security({"SEEDBED_TOKEN": TOKEN}, listen=listen, **tls)
    security(listen=listen, token_file=authority.tokens(TOKEN), **tls)
    security(listen=listen, insecure=True)


@pytest.mark.parametrize("listen", ["127.0.0.1:7777", "[::1]:7777", "localhost:7777", "unix:/x", None])
def test_a_private_address_needs_neither(listen: str | None) -> None:
    assert not security(listen=listen).tokens
    assert security(listen=listen).credentials() is None


def test_the_token_of_local_actors_protects_nothing_from_others() -> None:
    with pytest.raises(ConfigError, match="can be reached from other machines"):
        ServerSecurity(LearnerOptions(listen="0.0.0.0:1"), local_token=OTHER_TOKEN, environ={})
    alone = ServerSecurity(LearnerOptions(), local_token=OTHER_TOKEN, environ={})
    assert not alone.tokens, "and without others' tokens none is asked for"


def test_options_that_need_each_other() -> None:
    with pytest.raises(ConfigError, match="--tls-cert and --tls-key go together: give both, or none"):
        LearnerOptions(tls_cert="x")
    with pytest.raises(ConfigError, match="--tls-client-ca needs TLS: give --tls-cert and --tls-key"):
        LearnerOptions(tls_client_ca="x")


def test_files_that_cannot_be_used(authority: Authority) -> None:
    tls, nonsense = authority.issue("learner"), authority.write("nonsense", b"nonsense")
    assert "expected a token a line, found none" in refused(token_file=authority.tokens())
    assert "nonsense.gone cannot be read" in refused(token_file=f"{nonsense}.gone")
    assert "SEEDBED_TOKEN: expected tokens of at least 16" in refused({"SEEDBED_TOKEN": "x"})
    assert "expected a certificate and its key" in refused(**{**tls, "tls_cert": nonsense})
    assert "--tls-client-ca" in refused(**tls, tls_client_ca=nonsense)
    Path(tls["tls_key"]).chmod(0o604)
    assert "has mode 0604" in refused(**tls)


# Tokens -----------------------------------------------------------------------------------------


def accepts(tokens: Tokens, value: str | bytes) -> bool:
    return tokens.accept({"user-agent": "x", "authorization": value})


def test_one_of_several_tokens_is_enough(authority: Authority) -> None:
    tokens = Tokens(authority.tokens(TOKEN, OTHER_TOKEN), ["of-the-environment"])
    for token in (TOKEN, OTHER_TOKEN, "of-the-environment"):
        assert accepts(tokens, f"Bearer {token}")
        assert accepts(tokens, f"bearer {token}"), "the scheme's case is free, as in HTTP"


@pytest.mark.parametrize(
    "value",
    [
        "", TOKEN, f"Basic {TOKEN}", "Bearer ", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x",
        f"Bearer {TOKEN.upper()}", f"Bearer  {TOKEN}", f"Bearer {TOKEN}".encode(), f"Bearer {TOKEN}ü",
    ],
)  # fmt: skip
def test_anything_else_is_not(value: str | bytes) -> None:
    assert not accepts(Tokens(None, [TOKEN]), value)


def test_no_metadata_is_no_token() -> None:
    assert not Tokens(None, [TOKEN]).accept({})


def test_tokens_are_not_in_sight(authority: Authority) -> None:
    tokens = Tokens(authority.tokens(TOKEN), [OTHER_TOKEN])
    assert TOKEN not in repr(tokens)
    assert OTHER_TOKEN not in repr(vars(security({"SEEDBED_TOKEN": OTHER_TOKEN})))


# Files that change ------------------------------------------------------------------------------


def test_grpc_is_handed_certificates_only_when_they_are_others(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handed the same at each handshake, it crashed where there were many at once."""
    asked: list[Callable[[], Any]] = []
    monkeypatch.setattr(
        grpc, "dynamic_ssl_server_credentials", lambda initial, ask, mutual: asked.append(ask)
    )
    security(**authority.issue("learner")).credentials()
    (ask,) = asked
    assert ask() is None
    authority.issue("learner")
    assert isinstance(ask(), grpc.ServerCertificateConfiguration)
    assert ask() is None


class Reader:
    """Reads a file, and counts how often; refuses one that says "broken"."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.times = 0

    def __call__(self) -> str:
        self.times += 1
        text = self._path.read_text() if self._path.exists() else "broken"
        if text == "broken":
            raise ConfigError("broken")
        return text


def test_a_file_is_read_when_it_has_changed_and_only_then(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("one")
    reader = Reader(path)
    watched = Watched([str(path)], reader)
    assert [watched.get(), watched.get()] == ["one", "one"]
    assert reader.times == 1
    path.write_text("three")
    assert [watched.get(), watched.get()] == ["three", "three"]
    assert reader.times == 2


def test_a_link_that_leads_elsewhere_is_a_change(tmp_path: Path) -> None:
    """As Kubernetes swaps a secret: ..data is a link to a folder, and is replaced as a whole."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
        os.utime(tmp_path / name / "file", (0, 0))
    (tmp_path / "data").symlink_to("one")
    path = tmp_path / "data" / "file"
    watched = Watched([str(path)], Reader(path))
    (tmp_path / "new").symlink_to("two")
    (tmp_path / "new").replace(tmp_path / "data")
    assert watched.get() == "two"


def test_a_broken_file_leaves_the_former_in_force(tmp_path: Path, log: LogLines) -> None:
    path = tmp_path / "file"
    path.write_text("one")
    watched = Watched([str(path)], Reader(path))
    path.write_text("broken")
    assert [watched.get(), watched.get()] == ["one", "one"]
    assert log.lines() == ["broken; what was read before stays in force"]
    path.unlink()
    assert [watched.get(), watched.get()] == ["one", "one"]
    path.write_text("two")
    assert watched.get() == "two"
    assert len(log.lines()) == 2, "once for each change"
