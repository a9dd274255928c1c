"""Runs whose observations cannot fit into memory are refused before any of it is allocated."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from learner.config import LearnerOptions
from learner.experience.memory import check_memory
from protos.errors import ConfigError
from protos.specs import ArraySpec

MB = 1_000_000
IMAGE = ArraySpec("", (1000, 1000), np.dtype(np.uint8))
"""of 1 MB"""


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets how much there is."""
    return lambda size: monkeypatch.setattr("learner.memory_limit.memory_limit", lambda: size)


def check(environments: int = 0, rows: int = 1, **options: Any) -> None:
    check_memory(LearnerOptions(**options), [IMAGE], max_rows=rows, environments=environments)


def test_policy_calls(limit: Any) -> None:
    limit(299 * MB)
    check(rows=299, batch_size=1)
    with pytest.raises(ConfigError) as refused:
        check(rows=300, batch_size=1)
    assert str(refused.value) == (
        "policy calls for 300 environments, of 1000000 bytes each: expected at least 0.3 GB of memory, "
        "found 0.299 GB: lower --inference-batch-size, run fewer environments, or make observations "
        "smaller"
    )


@pytest.mark.parametrize(("environments", "columns"), [(0, 8), (4, 8), (10, 14)])
def test_batches_and_what_environments_write(environments: int, columns: int, limit: Any) -> None:
    """Of unrolls of 10 rows."""
    limit(columns * 10 * MB + MB)
    check(environments, unroll_length=9, batch_size=4)
    limit(columns * 10 * MB)
    with pytest.raises(ConfigError, match="batches of 4 unrolls of 9 steps, of 1000000 bytes"):
        check(environments, unroll_length=9, batch_size=4)


@pytest.mark.parametrize(
    "least",
    [{"replay_capacity": 100}, {"replay_gigabytes": 0.1}, {"total_steps": 100}],
)
def test_a_replay_that_will_fill(least: dict[str, Any], limit: Any) -> None:
    """Of 100 transitions, beside a batch of 4 copies of 2 rows and 3 unrolls of 5 rows."""
    options = {"agent": "sac", "unroll_length": 4, "batch_size": 4, "n_step": 1, "replay_min_size": 64}
    limit(124 * MB)
    check(3, **options, **least)
    limit(122 * MB)
    with pytest.raises(ConfigError, match=r"a replay of .* transitions, and batches, .* found 0.122 GB"):
        check(3, **options, **least)


def test_every_leaf_counts(limit: Any) -> None:
    limit(299 * MB)
    two = [IMAGE, replace(IMAGE, name="other")]
    with pytest.raises(ConfigError, match="policy calls for 150 environments, of 2000000 bytes each"):
        check_memory(LearnerOptions(batch_size=1), two, max_rows=150, environments=0)
