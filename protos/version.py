"""Which seedbed this is."""

import importlib.metadata
from functools import cache


@cache
def version() -> str:
    """The installed distribution's version, such as "0.1.0"; "(not installed)" in a mere checkout."""
    try:
        return importlib.metadata.version("seedbed")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
