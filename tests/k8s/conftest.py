"""The rehearsals start processes, as the integration tests do."""

from tests.integration.conftest import launch

__all__ = ["launch"]
