"""Who gets in and who does not, with real certificates and connections, and what each side says."""

import datetime
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme

from actor.client import InferenceClient
from actor.credentials import Credentials
from actor.retry import RetryPolicy
from actor.timestep import restart
from learner.config import LearnerOptions
from learner.serving.security import ServerSecurity
from protos.errors import ConfigError, NotServing, RequestError, Unauthenticated
from tests.fakes import ACTIONS, OBSERVATIONS, FakeLearner

TOKEN, OTHER = "a-token-of-the-cluster", "the-token-of-next-week"


class Pki:
    """Files of one authority, in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.authority = trustme.CA()
        self.folder = folder
        self.ca = self._write("ca.pem", self.authority.cert_pem.bytes())

    def issue(self, name: str, **more: Any) -> tuple[str, str]:
        """Files of a new certificate for 127.0.0.1, and of its key."""
        issued = self.authority.issue_cert("127.0.0.1", "localhost", **more)
        certificate = self._write(f"{name}.pem", issued.cert_chain_pems[0].bytes())
        return certificate, self._write(f"{name}.key", issued.private_key_pem.bytes())

    def tokens(self, *tokens: str) -> str:
        return self._write("tokens", "\n".join(["# of the cluster", *tokens, ""]).encode())

    def _write(self, name: str, contents: bytes) -> str:
        # As Kubernetes does it: another file takes the name.
        path, new = self.folder / name, self.folder / f"{name}.new"
        new.write_bytes(contents)
        new.chmod(0o600)
        new.replace(path)
        return str(path)


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path / "pki")


def protected(environ: Mapping[str, str] | None = None, **options: Any) -> FakeLearner:
    """A learner on a port of its own."""
    security = ServerSecurity(LearnerOptions(**options), environ=environ or {})
    return FakeLearner("127.0.0.1:0", security=security)


def act(learner: FakeLearner, **credentials: Any) -> None:
    """One client's session of one step."""
    chosen = Credentials(**{"token": None, **credentials})
    retry = RetryPolicy(give_up_seconds=0.5)
    with InferenceClient(
        learner.address, OBSERVATIONS, ACTIONS, credentials=chosen, retry=retry
    ) as client:
        assert client.act(restart(np.array([7, 0], np.float32))) == 7


def refusal(kind: type[RequestError], learner: FakeLearner, **credentials: Any) -> str:
    with pytest.raises(kind) as refused:
        act(learner, **credentials)
    return str(refused.value)


# Tokens -----------------------------------------------------------------------------------------


def test_a_token_gets_in_and_nothing_else_does(pki: Pki, caplog: pytest.LogCaptureFixture) -> None:
    with protected(token_file=pki.tokens(TOKEN, OTHER)) as learner:
        act(learner, token=TOKEN)
        act(learner, token=OTHER)
        expected = "expected a bearer token that this learner knows, found none"
        assert refusal(Unauthenticated, learner) == expected
        assert refusal(Unauthenticated, learner, token="a-token-of-the-clusteR") == expected
        assert learner.server.statistics()["count_errors_unauthenticated"] == 2
        assert learner.server.statistics()["count_sessions_begun"] == 2
    refused = [record for record in caplog.messages if "refused: expected a bearer token" in record]
    assert len(refused) == 2, "one line each"
    assert TOKEN not in caplog.text
    assert "clusteR" not in caplog.text


def test_tokens_are_rotated_without_a_restart(pki: Pki) -> None:
    with protected(token_file=pki.tokens(TOKEN)) as learner:
        refusal(Unauthenticated, learner, token=OTHER)
        pki.tokens(TOKEN, OTHER)
        act(learner, token=TOKEN)
        act(learner, token=OTHER)
        pki.tokens(OTHER)
        refusal(Unauthenticated, learner, token=TOKEN)
        act(learner, token=OTHER)


def test_a_broken_new_file_leaves_the_old_tokens_in_force(
    pki: Pki, caplog: pytest.LogCaptureFixture
) -> None:
    path = pki.tokens(TOKEN)
    with protected(token_file=path) as learner:
        Path(path).chmod(0o644)
        act(learner, token=TOKEN)
        Path(path).unlink()
        act(learner, token=TOKEN)
        act(learner, token=TOKEN)
    complaints = [text for text in caplog.messages if "stays in force" in text]
    assert len(complaints) == 2, "once for each change"
    assert "holds a secret that others can reach: chmod o= it" in complaints[0]


def test_a_token_from_the_environment(pki: Pki) -> None:
    with protected({"SEEDBED_TOKEN": TOKEN}) as learner:
        act(learner, token=TOKEN)
        act(learner, token_file=pki.tokens(TOKEN, OTHER))
        refusal(Unauthenticated, learner, token=OTHER)


def test_a_client_takes_its_token_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEDBED_TOKEN", TOKEN)
    assert Credentials().metadata() == (("authorization", f"Bearer {TOKEN}"),)
    assert TOKEN not in repr(Credentials())


def test_local_actors_have_a_token_of_their_own(pki: Pki, tmp_path: Path) -> None:
    options = LearnerOptions(token_file=pki.tokens(TOKEN), listen="127.0.0.1:0")
    security = ServerSecurity(options, local_token=OTHER, environ={})
    local = f"unix:{tmp_path}/local"
    with FakeLearner("127.0.0.1:0", security=security, local=local) as learner:
        act(learner, token=TOKEN)
        learner.address = local
        act(learner, token=OTHER)
        refusal(Unauthenticated, learner)


def test_without_tokens_nobody_needs_the_local_one() -> None:
    security = ServerSecurity(LearnerOptions(), local_token=OTHER, environ={})
    assert security.interceptors() == []


# TLS --------------------------------------------------------------------------------------------


def test_tls_and_mutual_tls(pki: Pki, tmp_path: Path) -> None:
    certificate, key = pki.issue("learner")
    own, own_key = pki.issue("actor")
    stranger, stranger_key = Pki(tmp_path / "other").issue("actor")
    with protected(tls_cert=certificate, tls_key=key) as learner:
        act(learner, tls_ca=pki.ca)
    with protected(tls_cert=certificate, tls_key=key, tls_client_ca=pki.ca) as learner:
        act(learner, tls_ca=pki.ca, tls_cert=own, tls_key=own_key)
        hint = "a client without a certificate it trusts"
        assert hint in refusal(NotServing, learner, tls_ca=pki.ca)
        both = {"tls_cert": stranger, "tls_key": stranger_key}
        assert hint in refusal(NotServing, learner, tls_ca=pki.ca, **both)
        assert learner.server.statistics()["count_sessions_begun"] == 1


def test_certificates_that_are_not_trusted(pki: Pki, tmp_path: Path) -> None:
    past = (
        datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
        datetime.datetime(2021, 1, 1, tzinfo=datetime.UTC),
    )
    certificate, key = pki.issue("learner")
    expired, expired_key = pki.issue("old", not_before=past[0], not_after=past[1])
    with protected(tls_cert=certificate, tls_key=key) as learner:
        message = refusal(Unauthenticated, learner, tls_ca=Pki(tmp_path / "other").ca)
        assert message.startswith("the learner's certificate is not trusted (unable to get local issuer")
    with protected(tls_cert=expired, tls_key=expired_key) as learner:
        message = refusal(Unauthenticated, learner, tls_ca=pki.ca)
        assert message == (
            "the learner's certificate is not trusted (certificate has expired): compare --tls-ca and "
            "the name in --server with the learner's --tls-cert"
        )


def test_plain_text_to_tls_and_tls_to_plain_text(pki: Pki) -> None:
    certificate, key = pki.issue("learner")
    with protected(tls_cert=certificate, tls_key=key) as learner:
        assert "what a TLS port says to plain text" in refusal(NotServing, learner)
    with protected() as learner:
        message = refusal(Unauthenticated, learner, tls_ca=pki.ca)
        assert message == "the learner speaks plain text, not TLS: leave out --tls-ca, or fix it"


def test_certificates_are_renewed_without_a_restart(
    pki: Pki, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Pki(tmp_path / "other")
    certificate, key = pki.issue("learner")
    with protected(tls_cert=certificate, tls_key=key) as learner:
        act(learner, tls_ca=pki.ca)
        new, new_key = other.issue("learner")
        Path(new).replace(certificate)
        act(learner, tls_ca=pki.ca)
        assert "expected a certificate and its key" in caplog.text, "until its key has come too"
        Path(new_key).replace(key)
        act(learner, tls_ca=other.ca)
        refusal(Unauthenticated, learner, tls_ca=pki.ca)


# Refusals at start ------------------------------------------------------------------------------


def refused(environ: Mapping[str, str] | None = None, **options: Any) -> str:
    with pytest.raises(ConfigError) as refusal:
        ServerSecurity(LearnerOptions(**options), environ=environ or {})
    return str(refusal.value)


@pytest.mark.parametrize("listen", ["0.0.0.0:7777", "[::]:7777", "10.0.0.3:0", "learner.example:7777"])
def test_an_open_address_needs_tls_and_a_token_or_insecure(pki: Pki, listen: str) -> None:
    certificate, key = pki.issue("learner")
    tls = {"tls_cert": certificate, "tls_key": key}
    start = f"--listen {listen} can be reached from other machines: give --tls-cert and --tls-key, and"
    assert refused(listen=listen).startswith(start)
    assert refused(listen=listen, **tls).startswith(start)
    assert refused({"SEEDBED_TOKEN": TOKEN}, listen=listen).startswith(start)
    ServerSecurity(LearnerOptions(listen=listen, **tls), environ={"SEEDBED_TOKEN": TOKEN})
    ServerSecurity(LearnerOptions(listen=listen, insecure=True), environ={})


@pytest.mark.parametrize(
    "listen", ["127.0.0.1:7777", "127.8.8.8:1", "[::1]:7777", "localhost:7777", "unix:/tmp/x", None]
)
def test_a_private_address_needs_neither(listen: str | None) -> None:
    ServerSecurity(LearnerOptions(listen=listen), environ={})


def test_files_that_cannot_be_used(pki: Pki, tmp_path: Path) -> None:
    certificate, key = pki.issue("learner")
    _, other_key = pki.issue("other")
    tokens = pki.tokens(TOKEN)
    assert "tokens.gone cannot be read: No such file" in refused(token_file=f"{tokens}.gone")
    assert "expected a token a line, found none" in refused(token_file=pki.tokens())
    short = refused(token_file=pki.tokens(TOKEN, "short-secret"))
    assert "expected tokens of at least 16 ASCII characters without spaces, found another" in short
    assert "short-secret" not in short
    assert "SEEDBED_TOKEN: expected tokens of at least" in refused({"SEEDBED_TOKEN": "x"})
    assert "expected a certificate and its key" in refused(tls_cert=certificate, tls_key=other_key)
    assert "expected a certificate and its key" in refused(tls_cert=tokens, tls_key=key)
    Path(key).chmod(0o604)
    assert f"--tls-key {key} has mode 0604, and holds a secret that others can reach" in refused(
        tls_cert=certificate, tls_key=key
    )
    Path(key).chmod(0o640)  # Kubernetes' fsGroup.
    ServerSecurity(LearnerOptions(tls_cert=certificate, tls_key=key), environ={})


def test_options_that_need_each_other(pki: Pki) -> None:
    with pytest.raises(ConfigError, match="--tls-cert and --tls-key go together"):
        LearnerOptions(tls_cert="x")
    with pytest.raises(ConfigError, match="--tls-client-ca needs TLS"):
        LearnerOptions(tls_client_ca="x")
    with pytest.raises(ConfigError, match="--tls-cert and --tls-key go together"):
        Credentials(tls_ca="x", tls_key="x")
    with pytest.raises(ConfigError, match="--tls-cert needs TLS: give --tls-ca too"):
        Credentials(tls_cert="x", tls_key="x")


def test_a_token_is_not_sent_over_a_network_in_plain_text() -> None:
    with pytest.raises(ConfigError, match="a token would travel over the network in plain text"):
        Credentials(token=TOKEN).check("10.0.0.3:7777")
    Credentials(token=TOKEN, insecure=True).check("10.0.0.3:7777")
    Credentials(token=TOKEN).check("127.0.0.1:7777")
    Credentials(token=TOKEN).check("unix:/tmp/x")


# Unix sockets -----------------------------------------------------------------------------------


def test_a_unix_socket_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with FakeLearner(f"unix:{tmp_path}/s"):
            assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
            assert os.umask(0o022) == 0o022, "files that are made later are as ever"
    finally:
        os.umask(before)


def test_a_local_address_beside_the_public_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO),
        FakeLearner("127.0.0.1:0", local=f"unix:{tmp_path}/local") as learner,
    ):
        act(learner)
        learner.address = f"unix:{tmp_path}/local"
        act(learner)
