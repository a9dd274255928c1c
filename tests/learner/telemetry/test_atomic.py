"""Files that are either the old one or the new one."""

from pathlib import Path

import pytest

from learner.telemetry.atomic import replace_file
from tests.learner.telemetry.disk import full_at


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_new_file_appears_whole_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.write_bytes(b"old")
    with replace_file(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["summary.json"]


def test_an_error_in_the_block_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.write_bytes(b"old")

    def write() -> None:
        with replace_file(path) as file:
            file.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        write()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["summary.json"]


def test_a_full_disk_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.write_bytes(b"old")

    def write() -> None:
        with replace_file(path) as file:
            file.write(b"x" * 100_000)

    with full_at(1000), pytest.raises(OSError, match="File too large"):
        write()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["summary.json"]
