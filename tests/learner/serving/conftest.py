"""What the tests of the serving side share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import FakeLearner, LogLines


@pytest.fixture
def log() -> Iterator[LogLines]:
    """What the serving side says, whole."""
    with LogLines("learner.serving") as lines:
        yield lines


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"unix:{tmp_path}/s"


@pytest.fixture
def learner(address: str) -> Iterator[FakeLearner]:
    with FakeLearner(address) as fake:
        yield fake
