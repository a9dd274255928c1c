"""What holds for every test."""

import logging
from collections.abc import Iterator

import pytest

import protos  # noqa: F401 - before a test imports gRPC, whose settings it has


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[logging.Logger]:
    """As it was before: a handler that a command leaves writes to a stream that ends with its test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)
