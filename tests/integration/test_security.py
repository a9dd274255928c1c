"""Who gets in and who does not, with real certificates and connections, and what each side says."""

import json
import os
import signal
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from actor.client import InferenceClient
from actor.retry import RetryPolicy
from actor.timestep import TimeStep, restart, transition
from learner.config import LearnerOptions
from learner.serving.security import ServerSecurity
from learner.serving.sparing import LIMIT
from protos.credentials import Credentials
from protos.errors import NotServing, RequestError, Unauthenticated
from tests.certificates import LONG_AGO, OTHER_TOKEN, TOKEN, Authority
from tests.fakes import ACTIONS, OBSERVATIONS, FakeLearner, LogLines
from tests.integration.processes import Launcher, options
from tests.integration.test_separate import free_port


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEEDBED_TOKEN", raising=False)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    """An authority that nobody trusts, unless it is named."""
    return Authority(tmp_path / "stranger")


def protected(environ: Mapping[str, str] | None = None, **chosen: Any) -> FakeLearner:
    """A learner on a port of its own."""
    security = ServerSecurity(LearnerOptions(**chosen), environ=environ or {})
    return FakeLearner("127.0.0.1:0", security=security)


def client(address: str, **credentials: Any) -> InferenceClient:
    return InferenceClient(
        address,
        OBSERVATIONS,
        ACTIONS,
        credentials=Credentials(**credentials),
        retry=RetryPolicy(give_up_seconds=0.5),
    )


def first(number: float) -> TimeStep:
    return restart(np.array([number, 0], np.float32))


def act(learner: FakeLearner, **credentials: Any) -> None:
    """One client's session of one step."""
    with client(learner.address, **credentials) as session:
        assert session.act(first(7)) == 7


def refusal(kind: type[RequestError], learner: FakeLearner, **credentials: Any) -> str:
    with pytest.raises(kind) as refused:
        act(learner, **credentials)
    return str(refused.value)


# Tokens -----------------------------------------------------------------------------------------

NO_TOKEN = (
    "expected a bearer token that this learner knows, found none: give the actor --token-file, or "
    "SEEDBED_TOKEN"
)
WRONG_TOKEN = NO_TOKEN.replace("found none", "found another")


def test_a_token_gets_in_and_nothing_else_does(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with protected(token_file=authority.tokens(TOKEN, OTHER_TOKEN)) as learner:
        act(learner, token=TOKEN)
        act(learner, token=OTHER_TOKEN)
        assert refusal(Unauthenticated, learner) == NO_TOKEN
        assert refusal(Unauthenticated, learner, token="a-token-of-the-clusteR") == WRONG_TOKEN
        assert learner.server.statistics()["count_errors_unauthenticated"] == 2
        assert learner.server.statistics()["count_sessions_begun"] == 2
    refused = [line for line in caplog.messages if "refused: expected a bearer token" in line]
    assert len(refused) == 2, "one line each"
    for token in (TOKEN, OTHER_TOKEN, "clusteR"):
        assert token not in caplog.text


def test_a_flood_of_wrong_tokens_does_not_fill_the_log(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with protected(token_file=authority.tokens(TOKEN)) as learner:
        for _ in range(LIMIT + 5):
            refusal(Unauthenticated, learner, token=OTHER_TOKEN)
        assert learner.server.statistics()["count_errors_unauthenticated"] == LIMIT + 5
    assert sum("refused: expected a bearer token" in line for line in caplog.messages) == LIMIT
    assert sum("they are counted for now" in line for line in caplog.messages) == 1


def test_tokens_are_rotated_without_a_restart(authority: Authority) -> None:
    with protected(token_file=authority.tokens(TOKEN)) as learner:
        refusal(Unauthenticated, learner, token=OTHER_TOKEN)
        authority.tokens(TOKEN, OTHER_TOKEN)
        act(learner, token=TOKEN)
        act(learner, token=OTHER_TOKEN)
        authority.tokens(OTHER_TOKEN)
        refusal(Unauthenticated, learner, token=TOKEN)
        act(learner, token=OTHER_TOKEN)


def test_a_broken_new_file_leaves_the_old_tokens_in_force(authority: Authority) -> None:
    path = authority.tokens(TOKEN)
    with LogLines("learner.serving.security") as log, protected(token_file=path) as learner:
        Path(path).chmod(0o644)
        act(learner, token=TOKEN)
        Path(path).unlink()
        act(learner, token=TOKEN)
        act(learner, token=TOKEN)
    readable, gone = log.lines()
    assert "holds a secret that others can reach: chmod o= it; what was read before stays in" in readable
    assert "cannot be read: No such file or directory; what was read before stays in force" in gone


def test_a_token_from_the_environment(authority: Authority) -> None:
    with protected({"SEEDBED_TOKEN": TOKEN}) as learner:
        act(learner, token=TOKEN)
        act(learner, token_file=authority.tokens(TOKEN, OTHER_TOKEN))
        assert refusal(Unauthenticated, learner, token=OTHER_TOKEN) == WRONG_TOKEN


def test_local_actors_have_a_token_and_an_address_of_their_own(
    authority: Authority, tmp_path: Path
) -> None:
    chosen = LearnerOptions(token_file=authority.tokens(TOKEN), **authority.issue("learner"))
    security = ServerSecurity(chosen, local_token=OTHER_TOKEN, environ={})
    local = f"unix:{tmp_path}/local"
    with FakeLearner("127.0.0.1:0", security=security, local=local) as learner:
        act(learner, token=TOKEN, tls_ca=authority.ca)
        learner.address = local
        act(learner, token=OTHER_TOKEN)
        assert refusal(Unauthenticated, learner) == NO_TOKEN


def test_probes_need_no_token(authority: Authority) -> None:
    with (
        protected(token_file=authority.tokens(TOKEN)) as learner,
        grpc.insecure_channel(learner.address) as channel,
    ):
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        unknown = channel.unary_unary("/grpc.health.v1.HealthX/Check")
        with pytest.raises(grpc.RpcError) as refused:
            unknown(b"")
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]  # stubs give RpcError no code


# TLS --------------------------------------------------------------------------------------------

UNTRUSTED = (
    "the learner's certificate is not trusted ({}): compare --tls-ca and the name in --server with the "
    "learner's --tls-cert"
)
CLOSED = (
    " (this is also what a TLS port says to plain text, or to a client without a certificate it trusts)"
)


def test_tls_and_mutual_tls(authority: Authority, stranger: Authority) -> None:
    tls = authority.issue("learner")
    with protected(**tls) as learner:
        act(learner, tls_ca=authority.ca)
    with protected(**tls, tls_client_ca=authority.ca) as learner:
        act(learner, tls_ca=authority.ca, **authority.issue("actor"))
        assert refusal(NotServing, learner, tls_ca=authority.ca).endswith(CLOSED)
        unknown = stranger.issue("actor")
        assert refusal(NotServing, learner, tls_ca=authority.ca, **unknown).endswith(CLOSED)
        assert learner.server.statistics()["count_sessions_begun"] == 1


def test_certificates_that_are_not_trusted(authority: Authority, stranger: Authority) -> None:
    with protected(**authority.issue("learner")) as learner:
        message = refusal(Unauthenticated, learner, tls_ca=stranger.ca)
        assert message == UNTRUSTED.format("unable to get local issuer certificate")
    with protected(**authority.issue("old", **LONG_AGO)) as learner:
        message = refusal(Unauthenticated, learner, tls_ca=authority.ca)
        assert message == UNTRUSTED.format("certificate has expired")
    with protected(**authority.issue("elsewhere", "learner.example.org")) as learner:
        message = refusal(Unauthenticated, learner, tls_ca=authority.ca)
        assert message == UNTRUSTED.format("it has another name")


def test_plain_text_to_tls_and_tls_to_plain_text(authority: Authority) -> None:
    with protected(**authority.issue("learner")) as learner:
        assert refusal(NotServing, learner).endswith(CLOSED)
    with protected() as learner:
        message = refusal(Unauthenticated, learner, tls_ca=authority.ca)
        assert message == "the learner speaks plain text, not TLS: leave out --tls-ca, or fix it"


def test_certificates_are_renewed_without_a_restart(authority: Authority, stranger: Authority) -> None:
    tls = authority.issue("learner")
    with LogLines("learner.serving.security") as log, protected(**tls) as learner:
        act(learner, tls_ca=authority.ca)
        new = stranger.issue("learner")
        Path(new["tls_cert"]).replace(tls["tls_cert"])
        act(learner, tls_ca=authority.ca)
        (said,) = log.lines()
        assert "expected a certificate and its key" in said, "until its key has come too"
        Path(new["tls_key"]).replace(tls["tls_key"])
        act(learner, tls_ca=stranger.ca)
        refusal(Unauthenticated, learner, tls_ca=authority.ca)


def test_a_session_survives_a_renewal_on_both_sides(authority: Authority, stranger: Authority) -> None:
    """The client connects again while its new files are not all there yet."""
    tls, own = authority.issue("learner"), authority.issue("actor")
    chosen = {**tls, "tls_client_ca": authority.ca, "token_file": authority.tokens(TOKEN)}
    with protected(**chosen) as learner:
        address, port = learner.address, learner.server.port
        credentials = {**own, "tls_ca": authority.ca, "token_file": chosen["token_file"]}
        with client(address, **credentials) as session:
            assert session.act(first(7)) == 7
            learner.server.end_streams(NotServing("the learner ends"))
            learner.server.close()
            authority.tokens()
            with (
                LogLines("actor.client") as log,
                pytest.raises(NotServing, match="expected a token a line, found none"),
            ):
                session.act(later(8))
            assert any("waiting for the learner" in line for line in log.lines())
            authority.tokens(OTHER_TOKEN)
            security = ServerSecurity(LearnerOptions(**chosen), environ={})
            with FakeLearner(f"127.0.0.1:{port}", security=security):
                assert session.act(later(8)) == 8


def later(number: float) -> TimeStep:
    no = np.zeros(1, bool)
    return transition(np.array([number, 0], np.float32), np.ones(1), no, no)


# One clear line on each side --------------------------------------------------------------------

PROTECTED_LEARNER = """
import json, logging, sys, threading
from learner.config import LearnerOptions
from learner.serving.security import ServerSecurity
from tests.fakes import FakeLearner
logging.basicConfig(level="INFO")
security = ServerSecurity(LearnerOptions(**json.loads(sys.argv[1])), environ={})
with FakeLearner("127.0.0.1:0", security=security):
    threading.Event().wait()
"""

HANDSHAKE = "Handshake failed with error SSL_ERROR_SSL: .*"


def serve(launch: Launcher, **chosen: Any) -> tuple[Any, str]:
    learner = launch.python("-c", PROTECTED_LEARNER, json.dumps(chosen))
    port = learner.says(r"listening on .* \(port (\d+)\)")[1]
    return learner, f"127.0.0.1:{port}"


def refused_actor(launch: Launcher, address: str, **chosen: Any) -> str:
    """The last line of an actor, which ends with status 1."""
    actor = launch.actor(
        *options(server=address, env="CartPole-v1", num_envs=1, connect_timeout_seconds=0.5, **chosen)
    )
    assert actor.status() == 1, actor.stderr
    return actor.stderr.splitlines()[-1]


def test_each_side_says_why_a_handshake_failed(
    launch: Launcher, authority: Authority, stranger: Authority
) -> None:
    learner, address = serve(launch, **authority.issue("learner"))
    said = refused_actor(launch, address, tls_ca=stranger.ca)
    assert said.endswith(UNTRUSTED.format("unable to get local issuer certificate"))
    learner.says(HANDSHAKE + "ALERT_UNKNOWN_CA")
    assert refused_actor(launch, address).endswith(CLOSED)
    learner.says(HANDSHAKE + "WRONG_VERSION_NUMBER")


def test_each_side_says_that_the_learner_is_another(launch: Launcher, authority: Authority) -> None:
    learner, address = serve(launch, **authority.issue("old", **LONG_AGO))
    said = refused_actor(launch, address, tls_ca=authority.ca)
    assert said.endswith(UNTRUSTED.format("certificate has expired"))
    learner.says(HANDSHAKE + "ALERT_CERTIFICATE_EXPIRED")

    learner, address = serve(launch, **authority.issue("elsewhere", "learner.example.org"))
    said = refused_actor(launch, address, tls_ca=authority.ca)
    assert said.endswith(UNTRUSTED.format("it has another name"))
    learner.says(HANDSHAKE + "ALERT_BAD_CERTIFICATE")


def test_each_side_says_that_the_actor_is_not_trusted(launch: Launcher, authority: Authority) -> None:
    both = {"tls_client_ca": authority.ca, "token_file": authority.tokens(TOKEN)}
    learner, address = serve(launch, **authority.issue("learner"), **both)
    expired = authority.issue("old", **LONG_AGO)
    assert refused_actor(launch, address, tls_ca=authority.ca).endswith(CLOSED)
    learner.says(HANDSHAKE + "PEER_DID_NOT_RETURN_A_CERTIFICATE")
    assert refused_actor(launch, address, tls_ca=authority.ca, **expired).endswith(CLOSED)
    learner.says(HANDSHAKE + "certificate has expired")
    said = refused_actor(launch, address, tls_ca=authority.ca, **authority.issue("actor"))
    assert said == f"seedbed-actor: error: {NO_TOKEN}"
    learner.says(r"ipv4:127\.0\.0\.1:\d+: refused: expected a bearer token .*, found none")
    assert TOKEN not in learner.stderr


# Unix sockets -----------------------------------------------------------------------------------


def test_a_unix_socket_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with FakeLearner(f"unix:{tmp_path}/s"):
            assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
            assert os.umask(0o022) == 0o022, "files that are made later are as ever"
    finally:
        os.umask(before)


def test_a_local_address_beside_the_public_one(tmp_path: Path) -> None:
    with FakeLearner("127.0.0.1:0", local=f"unix:{tmp_path}/local") as learner:
        act(learner)
        learner.address = f"unix:{tmp_path}/local"
        act(learner)


# A whole run ------------------------------------------------------------------------------------


@pytest.mark.timeout(240)
def test_a_protected_run_with_actors_here_and_elsewhere(
    launch: Launcher, authority: Authority, tmp_path: Path
) -> None:
    tls, tokens = authority.issue("learner"), authority.tokens(TOKEN)
    address, logdir = f"127.0.0.1:{free_port()}", tmp_path / "run"
    relative = {name: Path(path).name for name, path in {**tls, "token_file": tokens}.items()}
    sizes = {"env": "CartPole-v1", "num_actors": 1, "envs_per_actor": 2, "total_steps": 10_000_000}
    learner = launch.seedbed(
        "train",
        *options(listen=address, logdir=logdir, tls_client_ca="ca.pem", **sizes, **relative),
        cwd=Path(tokens).parent,
    )
    learner.says("local 0: brings 2 environments")
    elsewhere = {"server": address, "env": "CartPole-v1", "num_envs": 1, "tls_ca": authority.ca}
    actor = launch.actor(
        *options(name="elsewhere", **elsewhere, **authority.issue("actor")),
        environ={"SEEDBED_TOKEN": TOKEN},
    )
    learner.says("elsewhere: brings 1 environment")
    assert refused_actor(launch, address).endswith(CLOSED)
    learner.says(HANDSHAKE + "WRONG_VERSION_NUMBER")

    config = (logdir / "config.toml").read_text()
    for path in (*tls.values(), tokens, authority.ca):
        assert f'"{path}"' in config, "as good from any working directory"
    (local,) = (pid for pid in launch.left_by(learner) if b"--name=local 0" in command(pid))
    environ = (Path("/proc") / str(local) / "environ").read_bytes().split(b"\0")
    (token,) = (each.partition(b"=")[2] for each in environ if each.startswith(b"SEEDBED_TOKEN="))
    assert token.decode() != TOKEN
    assert token not in command(local)
    for kept in [learner.stderr, *(read(path) for path in logdir.rglob("*") if path.is_file())]:
        assert TOKEN not in kept
        assert token.decode() not in kept

    learner.signal(signal.SIGTERM)
    assert learner.status() == 0, learner.stderr
    actor.signal(signal.SIGTERM)
    assert actor.status() == 0, actor.stderr


def command(pid: int) -> bytes:
    return (Path("/proc") / str(pid) / "cmdline").read_bytes()


def read(path: Path) -> str:
    return path.read_bytes().decode("latin-1")
