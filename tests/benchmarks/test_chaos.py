"""What `benchmarks.chaos` says; that it breaks things is in tests/integration/test_faults.py."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks import chaos
from benchmarks.chaos import ChaosOptions, Restart, first_window, main
from benchmarks.faults.cluster import ClusterFailure
from benchmarks.faults.proof import Proof
from benchmarks.measure import Meter, Window

RESTART = Restart(rate_before=1000.0, first_answer_seconds=5.0, recovered_seconds=7.5)


class Done:
    """Stands for a cluster that has ended."""

    def __init__(self) -> None:
        self.counts = Counter({"actors killed": 3})


def answer(monkeypatch: pytest.MonkeyPatch, proof: Proof) -> None:
    """Let the measurement come out as `proof` says."""

    def measure(options: ChaosOptions, folder: Path) -> tuple[dict[str, Any], dict[str, Window]]:
        done: Any = Done()
        return chaos._result(RESTART, done, proof, 900, 950), {"everything": Meter({}).stop()}

    monkeypatch.setattr(chaos, "measure", measure)


def test_nothing_lost_is_status_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(monkeypatch, Proof(figures={"transitions": 940, "trained": 940}))
    assert main(["--minutes", "0.5", "--json"]) == 0
    *tables, last = capsys.readouterr().out.splitlines()
    assert "nothing was lost" in tables
    result = json.loads(last)
    assert result["benchmark"] == "chaos"
    assert result["lost_nothing"]
    assert result["figures"] == {"transitions": 940, "trained": 940}
    assert result["done"] == {"actors killed": 3}
    assert result["restart"]["recovered_seconds"] == 7.5


def test_a_loss_is_status_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answer(monkeypatch, Proof(faults=["environment 1, row 2: trained on twice"]))
    assert main([]) == 1
    assert "LOST:\nenvironment 1, row 2: trained on twice" in capsys.readouterr().out


def test_a_process_that_ends_by_itself_is_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(options: ChaosOptions, folder: Path) -> None:
        raise ClusterFailure("actor 3 ended with status 1: boom")

    monkeypatch.setattr(chaos, "measure", measure)
    assert main([]) == 1
    assert capsys.readouterr().err == "benchmarks.chaos: error: actor 3 ended with status 1: boom\n"


def test_the_rate_is_back_at_the_end_of_the_first_window_that_has_it() -> None:
    slow = [(0.5 * second, 40) for second in range(10)]
    assert first_window(slow, 90) is None
    assert first_window([*slow, (5.0, 49)], 90) is None
    assert first_window([*slow, (5.0, 50), (5.1, 100)], 90) == 5.0
    assert first_window([], 1) is None
