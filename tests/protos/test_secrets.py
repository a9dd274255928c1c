"""Files that hold secrets, the tokens in them, and addresses of this machine alone."""

import os
from pathlib import Path

import pytest

from protos.errors import ConfigError
from protos.secrets import check_token, is_private, read_public, read_secret, read_tokens
from tests.certificates import OTHER_TOKEN, TOKEN


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(TOKEN)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601, 0o644, 0o777])
def test_a_secret_that_others_can_reach_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(ConfigError) as refused:
        read_secret(str(file), "--tls-key")
    assert str(refused.value) == (
        f"--tls-key {file} has mode {mode:04o}, and holds a secret that others can reach: chmod o= it"
    )


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o640, 0o440, 0o660])
def test_owner_and_group_may_reach_it(file: Path, mode: int) -> None:
    file.chmod(mode)
    assert read_secret(str(file), "--tls-key") == TOKEN.encode()


def test_of_a_link_its_target_counts(file: Path, tmp_path: Path) -> None:
    """A link's own mode is 0777; Kubernetes' secrets are links."""
    link = tmp_path / "link"
    link.symlink_to(file)
    assert read_secret(str(link), "--tls-key") == TOKEN.encode()
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="has mode 0644"):
        read_secret(str(link), "--tls-key")


@pytest.mark.parametrize("read", [read_public, read_secret])
def test_a_file_that_cannot_be_read(read: object, tmp_path: Path) -> None:
    assert callable(read)
    with pytest.raises(ConfigError) as refused:
        read(f"{tmp_path}/none", "--tls-ca")
    assert str(refused.value) == f"--tls-ca {tmp_path}/none cannot be read: No such file or directory"
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read(str(tmp_path), "--tls-ca")


def test_tokens_of_a_file(file: Path) -> None:
    file.write_text(f"# this week's\n  {TOKEN} \r\n\n{OTHER_TOKEN}")
    assert read_tokens(str(file)) == (TOKEN, OTHER_TOKEN)


@pytest.mark.parametrize("text", ["", "\n\n", "# a comment alone\n"])
def test_a_file_without_a_token(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_tokens(str(file))
    assert str(refused.value) == f"--token-file {file}: expected a token a line, found none"


@pytest.mark.parametrize(
    "token",
    ["short", "fifteen-letters", "one that has spaces", "tab\tin-between-these", "schlüssel-des-hauses"],
)
def test_what_is_no_token_is_refused_and_not_repeated(file: Path, token: str) -> None:
    file.write_text(f"{TOKEN}\n{token}\n")
    with pytest.raises(ConfigError) as refused:
        read_tokens(str(file))
    assert str(refused.value) == (
        f"--token-file {file}: expected tokens of at least 16 ASCII characters without spaces, "
        "found another"
    )


def test_what_is_no_text_is_refused(file: Path) -> None:
    file.write_bytes(bytes(range(128, 160)))
    with pytest.raises(ConfigError, match="found another"):
        read_tokens(str(file))


def test_a_token_of_the_environment() -> None:
    check_token(TOKEN, "SEEDBED_TOKEN")
    with pytest.raises(ConfigError, match="SEEDBED_TOKEN: expected tokens of at least 16"):
        check_token("", "SEEDBED_TOKEN")


@pytest.mark.parametrize(
    "address", ["127.0.0.1:7777", "127.8.8.8:1", "[::1]:7777", "localhost:7777", "unix:/tmp/x"]
)
def test_addresses_of_this_machine_alone(address: str) -> None:
    assert is_private(address)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0:7777", "[::]:7777", "10.0.0.3:0", "learner.example:7777", "localhost.example:7777",
        "127.0.0.1.example:7777", "unix-abstract:x",
    ],
)  # fmt: skip
def test_addresses_that_others_may_reach(address: str) -> None:
    assert not is_private(address)


@pytest.mark.parametrize("read", [read_public, read_secret])
def test_a_pipe_is_refused_and_not_waited_for(read: object, tmp_path: Path) -> None:
    """Its reader would wait until somebody writes: a learner's event loop, for ever."""
    assert callable(read)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    with pytest.raises(ConfigError) as refused:
        read(str(pipe), "--token-file")
    assert str(refused.value) == (
        f"--token-file {pipe}: expected a regular file, which can be read again, found a pipe or a "
        "device"
    )


@pytest.mark.parametrize("read", [read_public, read_secret])
def test_a_device_that_has_no_end_is_refused(read: object) -> None:
    assert callable(read)
    with pytest.raises(ConfigError, match="found a pipe or a device"):
        read("/dev/zero", "--tls-key")


@pytest.mark.parametrize(("read", "most"), [(read_public, 1 << 24), (read_secret, 1 << 20)])
def test_a_file_that_is_far_too_large(read: object, most: int, file: Path) -> None:
    assert callable(read)
    with file.open("r+b") as opened:
        opened.truncate(most)
    assert len(read(str(file), "--tls-ca")) == most
    with file.open("r+b") as opened:
        # Takes no room on the disk, and would take as much memory.
        opened.truncate(1 << 40)
    with pytest.raises(ConfigError) as refused:
        read(str(file), "--tls-ca")
    assert str(refused.value) == f"--tls-ca {file}: expected a file of at most {most} bytes, found more"
