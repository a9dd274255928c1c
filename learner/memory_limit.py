"""How much memory there is, and the refusal of what cannot fit into it.

Memory is mapped at its first touch: what takes more than there is would begin, and be ended by the
kernel without a word. So it is refused before, by what it needs at the least.
"""

from collections.abc import Iterator
from pathlib import Path

from protos.errors import ConfigError


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes of memory and swap that this process may have, of the machine or its control groups,
    whichever is less; None where the system does not say."""
    limits = [*_of_machine(root / "proc/meminfo"), *_of_groups(root)]
    return min(limits, default=None)


def require_memory(needed: int, purpose: str, way_out: str) -> None:
    """Refuse what needs more memory, in bytes, than there is.

    Raises:
        ConfigError: with the purpose, both sizes, and the way out.
    """
    found = memory_limit()
    if found is not None and needed > found:
        raise ConfigError(
            f"{purpose}: expected at least {needed / 1e9:.3g} GB of memory, found {found / 1e9:.3g} GB: "
            f"{way_out}"
        )


def _of_machine(path: Path) -> Iterator[int]:
    sizes = dict(line.split(":", 1) for line in _lines(path) if ":" in line)
    if "MemTotal" in sizes:
        # "MemTotal:       24684084 kB"
        kilobytes = (int(sizes.get(name, "0").split()[0]) for name in ("MemTotal", "SwapTotal"))
        yield 1024 * sum(kilobytes)


def _of_groups(root: Path) -> Iterator[int]:
    """Of the control groups that this process is in, of version 1 or 2, and of those around them."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, group = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        folder = root / "sys/fs/cgroup" / controllers
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        # In a container the group's own path may be of the machine outside: its files are at the top.
        own = folder / group.lstrip("/")
        for each in (own, *own.parents):
            # "max" is no limit.
            yield from (int(line) for line in _lines(each / name) if line.isdigit())
            if each == folder:
                break


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
