"""What the integration tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.processes import Launcher


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launcher]:
    """Starts processes that end with the test, and so does all that they started."""
    folder = tmp_path / "processes"
    folder.mkdir()
    launcher = Launcher(folder)
    try:
        yield launcher
    finally:
        launcher.end_all()
