"""A benchmark's processes speak, fail loudly and end."""

from multiprocessing.connection import Connection

import pytest

from benchmarks.children import child, commands, with_port
from protos.errors import WorkerFailure


def _double(connection: Connection) -> None:
    for (number,) in commands(connection):
        connection.send(2 * number)


def _leave(connection: Connection, status: int) -> None:
    raise SystemExit(status)


def test_a_child_answers_and_ends_with_its_block() -> None:
    with child("doubler", _double) as process:
        assert process.ask(21) == 42
        pid = process.pid
        assert pid > 0
    process.close()  # idempotent


def test_a_child_that_ends_is_missed_at_once() -> None:
    with (
        child("leaver", _leave, 3) as process,
        pytest.raises(WorkerFailure, match="leaver ended with status 3"),
    ):
        process.answer()


@pytest.mark.parametrize(
    ("listen", "address"), [("127.0.0.1:0", "127.0.0.1:77"), ("unix:/tmp/a.sock", "unix:/tmp/a.sock")]
)
def test_the_address_has_the_port_that_the_system_chose(listen: str, address: str) -> None:
    assert with_port(listen, 77) == address
