"""Temporary folders go with the process, or with the next one after a kill; nothing else does."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from learner.scratch import LOCK, scratch_folder

KILLED = """
import os, signal
from pathlib import Path
from learner.scratch import scratch_folder
with scratch_folder() as folder:
    Path(folder, "learner.sock").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_is_there_for_the_block_and_for_its_owner_alone(temporary: Path) -> None:
    with scratch_folder() as folder:
        assert Path(folder).parent == temporary
        assert Path(folder).stat().st_mode & 0o777 == 0o700
        (Path(folder) / "file").touch()
    assert list(temporary.iterdir()) == []


def test_what_a_kill_has_left_goes_with_the_next(temporary: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED], env={**os.environ, "TMPDIR": str(temporary)}, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    (left,) = temporary.iterdir()
    assert (left / "learner.sock").exists()
    with scratch_folder() as folder:
        assert list(temporary.iterdir()) == [Path(folder)]


def test_those_of_the_living_stay(temporary: Path) -> None:
    with scratch_folder() as one, scratch_folder() as other:
        assert sorted(map(str, temporary.iterdir())) == sorted([one, other])


def test_what_only_has_such_a_name_stays(temporary: Path) -> None:
    (temporary / "seedbed-file").touch()
    (temporary / "seedbed-run").mkdir()
    (temporary / "seedbed-run" / ".lock").touch()
    (temporary / "mine").mkdir()
    (temporary / "mine" / LOCK).touch()
    (temporary / "seedbed-link").symlink_to(temporary / "mine")
    before = sorted(temporary.rglob("*"))
    with scratch_folder():
        pass
    assert sorted(temporary.rglob("*")) == before
