"""Work on one core, and on all at once."""

from benchmarks import machine
from tests.benchmarks.running import refused, run


def test_all_cores_are_compared_with_one() -> None:
    result = run("cores", "--seconds=0.1", "--rounds=2")
    assert result["machine"]["cores"] == machine.cores()
    assert result["work"].keys() == {"matrix products", "Python"}
    for found in result["work"].values():
        assert found.keys() == {"one_core", "all_cores", "worth"}
        assert min(found.values()) > 0


def test_no_rounds_are_refused() -> None:
    assert "--rounds 0: expected at least 1" in refused("cores", "--rounds=0")
