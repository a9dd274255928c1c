"""Options of `seedbed-actor`: precedence, and refusals in one line with status 2."""

from pathlib import Path

import pytest

from actor.config import ActorOptions
from protos.errors import ConfigError
from protos.options import parse


def parsed(*argv: str) -> ActorOptions:
    return parse(ActorOptions, argv, prog="seedbed-actor", description="")


def test_defaults() -> None:
    options = parsed("--env", "CartPole-v1")
    assert options == ActorOptions(env="CartPole-v1")
    assert options.server == "127.0.0.1:7777"
    assert options.connect_timeout_seconds == 0
    assert options.describe is False


def test_the_command_line_wins_over_the_environment_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "actor.toml"
    file.write_text('env = "CartPole-v1"\nnum_envs = 2\nseed = 2\nmode = "evaluate"\n')
    monkeypatch.setenv("SEEDBED_NUM_ENVS", "3")
    monkeypatch.setenv("SEEDBED_SEED", "3")
    options = parsed("--config", str(file), "--seed", "4")
    assert (options.mode, options.num_envs, options.seed) == ("evaluate", 3, 4)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "--env is required: what to step"),
        (["--env", ""], "--env is required"),
        (["--num-envs", "0"], "--num-envs 0: expected at least 1"),
        (["--num-envs", "many"], "--num-envs: expected int, found many"),
        (["--num-envs"], "argument --num-envs: expected one argument"),
        (["--seed", "-2"], "--seed -2: expected at least -1"),
        (["--mode", "play"], "--mode: expected train or evaluate, found play"),
        (["--connect-timeout-seconds", "-1"], "--connect-timeout-seconds -1.0: expected at least 0"),
        (["--connect-timeout-seconds", "nan"], "--connect-timeout-seconds: expected float, found nan"),
        (["--video", "walk.avi"], "--video walk.avi: expected a name that ends in .mp4 or .gif"),
        (["--nonsense", "1"], "unrecognized arguments: --nonsense 1"),
        (["--config", "no.toml"], "--config no.toml: no such file"),
    ],
)
def test_refusals(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    env = [] if message.startswith("--env") else ["--env", "CartPole-v1"]
    with pytest.raises(SystemExit) as caught:
        parsed(*env, *argv)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"seedbed-actor: error: {message}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("server", ["learner:7777", "[::1]:80", "unix:/tmp/x", "unix:x.sock"])
def test_servers_that_are_accepted(server: str) -> None:
    assert ActorOptions(env="x", server=server).server == server


@pytest.mark.parametrize(
    "server", ["learner", "learner:", ":80", "learner:http", "learner:0", "learner:65536", "unix:", ""]
)
def test_servers_that_are_refused(server: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ActorOptions(env="x", server=server)
    assert str(caught.value) == f"--server {server}: expected HOST:PORT or unix:PATH"


def test_describe_is_a_flag() -> None:
    assert parsed("--env", "x", "--describe").describe is True
    assert parsed("--env", "x", "--no-describe").describe is False
