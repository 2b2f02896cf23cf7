"""How much memory this process may still take: of the machine, and of each cgroup that it is in.

Copies in a memory file system count to the job's cgroup; one that did not fit would end the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
# Of cgroups of version 2 and 1: mount point, limit, use, and names of cached files in memory.stat.
_V2 = ("sys/fs/cgroup", "memory.max", "memory.current", ("inactive_file", "active_file"))
_V1 = (
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)
_DEEPEST = 32


def available_bytes(root: Path = ROOT) -> int | None:
    """The least of all; None where nothing is known."""
    known = [found for found in _all(root) if found is not None]
    return max(0, min(known)) if known else None


def _all(root: Path) -> Iterator[int | None]:
    yield _of_machine(_text(root / "proc/meminfo"))
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            kind = _V1 if controllers else _V2
            for folder in _upwards(path):
                yield _of_cgroup(root / kind[0] / folder, *kind[1:])


def _upwards(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part][:_DEEPEST]
    return ["/".join(parts[:length]) for length in range(len(parts), -1, -1)]


def _of_machine(meminfo: str) -> int | None:
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None


def _of_cgroup(folder: Path, limit: str, use: str, cached: tuple[str, ...]) -> int | None:
    most, used = _text(folder / limit).strip(), _text(folder / use).strip()
    if not most.isdecimal() or not used.isdecimal():
        return None  # "max", or a kernel without it
    rows = (line.split() for line in _text(folder / "memory.stat").splitlines())
    return int(most) - int(used) + sum(int(row[1]) for row in rows if row[0] in cached)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
