"""Addresses, taken apart in one place for whoever listens, connects or looks for others."""

from pathlib import Path

import pytest

from protos.addresses import chosen_port, host_and_port, located


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("localhost:0", ("localhost", 0)),
        ("10.0.0.1:65535", ("10.0.0.1", 65_535)),
        ("[::1]:7777", ("::1", 7777)),
    ],
)
def test_host_and_port(address: str, parts: tuple[str, int]) -> None:
    assert host_and_port(address) == parts


@pytest.mark.parametrize(
    "address", ["", "localhost", "localhost:", ":7777", "localhost:x", "localhost:-1", "localhost:65536"]
)
def test_what_is_neither_is_none(address: str) -> None:
    assert host_and_port(address) is None


def test_a_port_is_told_where_the_system_chose_it() -> None:
    assert chosen_port("localhost:0", 4711) == " (port 4711)"
    assert chosen_port("localhost:4711", 4711) == ""


def test_a_socket_is_the_same_in_every_directory() -> None:
    assert located("unix:folder/learner.sock") == f"unix:{Path.cwd()}/folder/learner.sock"
    assert located("unix:/learner.sock") == "unix:/learner.sock"
    assert located("unix:///learner.sock") == "unix:/learner.sock"
    assert located("localhost:4711") == "localhost:4711"
