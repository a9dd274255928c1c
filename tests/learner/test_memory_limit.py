"""How much memory there is, by the files in which systems say it."""

from pathlib import Path

import pytest

from learner.memory_limit import memory_limit, require_memory
from protos.errors import ConfigError

MACHINE = "MemTotal:       1000 kB\nMemFree:  10 kB\nHugePages_Total:       0\nSwapTotal:  24 kB\n"


def write(root: Path, **files: str) -> Path:
    """Files by their paths, with __ for /."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_machine_without_proc_says_nothing(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) is None


def test_memory_and_swap_count(tmp_path: Path) -> None:
    assert memory_limit(write(tmp_path, proc__meminfo=MACHINE)) == 1024 * 1024


@pytest.mark.parametrize(
    ("cgroup", "files"),
    [
        ("0::/\n", {"memory.max": "5000\n"}),
        ("0::/pods/one\n", {"pods/one/memory.max": "5000\n", "pods/memory.max": "max\n"}),
        ("0::/pods/one\n", {"pods/one/memory.max": "max\n", "pods/memory.max": "5000\n"}),
        ("0::/of/the/machine/outside\n", {"memory.max": "5000\n"}),
        ("3:cpu:/\n4:memory:/pod:1\n0::/\n", {"memory/pod:1/memory.limit_in_bytes": "5000\n"}),
        ("4:memory:/outside\n", {"memory/memory.limit_in_bytes": "5000\n"}),
    ],
)
def test_the_least_limit_of_a_container_counts(
    cgroup: str, files: dict[str, str], tmp_path: Path
) -> None:
    write(tmp_path, proc__meminfo=MACHINE, proc__self__cgroup=cgroup)
    assert memory_limit(tmp_path) == 1024 * 1024
    write(tmp_path / "sys/fs/cgroup", **files)
    assert memory_limit(tmp_path) == 5000


def test_a_limit_above_the_machine_is_none(tmp_path: Path) -> None:
    write(tmp_path, proc__meminfo=MACHINE, proc__self__cgroup="4:memory:/\n0::/\n")
    write(tmp_path / "sys/fs/cgroup/memory", **{"memory.limit_in_bytes": "9223372036854771712\n"})
    assert memory_limit(tmp_path) == 1024 * 1024


def test_what_cannot_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learner.memory_limit.memory_limit", lambda: 2_000_000_000)
    require_memory(2_000_000_000, "a replay", "lower it")
    with pytest.raises(ConfigError) as refused:
        require_memory(2_500_000_000, "a replay", "lower it")
    assert str(refused.value) == ("a replay: expected at least 2.5 GB of memory, found 2 GB: lower it")
    monkeypatch.setattr("learner.memory_limit.memory_limit", lambda: None)
    require_memory(10**18, "a replay", "lower it")
