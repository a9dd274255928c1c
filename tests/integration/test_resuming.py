"""Truthful resume: what a checkpoint holds is all that the next updates are made of."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.processes import ROOT
from tests.integration.resuming import AFTER, BEFORE


def losses(agent: str, folder: Path) -> Any:
    """What a process says of its updates after the checkpoint in `folder`, which the first one makes."""
    command = [sys.executable, "-m", "tests.integration.resuming", agent, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["version"] == BEFORE + AFTER
    return said["losses"]


@pytest.mark.parametrize("agent", ["vtrace", pytest.param("r2d2", marks=pytest.mark.slow), "sac"])
def test_the_next_hundred_losses_are_those_of_a_run_that_never_ended(agent: str, tmp_path: Path) -> None:
    """Weights, optimizer, normalizers, counters (schedules), random numbers, replay and rate limiter."""
    went_on, resumed = losses(agent, tmp_path), losses(agent, tmp_path)
    assert len(set(went_on)) > AFTER / 2
    assert resumed == went_on
