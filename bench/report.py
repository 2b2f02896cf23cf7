"""The common form of every measurement: figures with goals, printed as one JSON object.

    {"name", "date", "commit", "machine", "versions", "figures": [...], "notes": [...]}
    figure: {"name", "value", "unit", "goal", "better", "ok", "n", "min", "median", "max"}

`value` is what the goal is held against, the median unless a figure says otherwise; without a goal
a figure informs and is always ok. Reads files of the system and asks git and Debian's packages.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent
Better = Literal["lower", "higher"]


@dataclass(frozen=True)
class Figure:
    name: str
    value: float
    unit: str
    goal: float | None
    better: Better
    ok: bool
    n: int
    min: float
    median: float
    max: float


def figure(
    name: str,
    unit: str,
    samples: Sequence[float],
    *,
    goal: float | None = None,
    better: Better = "lower",
    worst: bool = False,
) -> Figure:
    """`worst`: the goal is held against the worst sample instead of the median."""
    if not samples:
        raise ValueError(f"{name}: nothing was measured")
    median = statistics.median(samples)
    low, high = min(samples), max(samples)
    value = (high if better == "lower" else low) if worst else median
    ok = goal is None or (value <= goal if better == "lower" else value >= goal)
    shown = [_rounded(number) for number in (value, low, median, high)]
    return Figure(name, shown[0], unit, goal, better, ok, len(samples), *shown[1:])


def finish(
    name: str,
    figures: Iterable[Figure],
    notes: Sequence[str] = (),
    packages: Sequence[str] = (),
    versions: dict[str, str] | None = None,
) -> int:
    """Prints the report; the exit code is 1 if a figure misses its goal."""
    found = list(figures)
    report = {
        "name": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "versions": {"python": platform.python_version(), **_installed(packages)}
        | (versions or {}),
        "figures": [asdict(one) for one in found],
        "notes": list(notes),
    }
    print(json.dumps(report, indent=1))
    for one in found:
        tell(line(one))
    return 0 if all(one.ok for one in found) else 1


def line(one: Figure) -> str:
    goal = "" if one.goal is None else f", goal {one.goal:g}: {'ok' if one.ok else 'MISSED'}"
    span = f" ({one.min:g} to {one.max:g}, n={one.n})" if one.n > 1 else ""
    return f"{one.name}: {one.value:g} {one.unit}{span}{goal}"


def tell(text: str) -> None:
    """Progress, for the person who waits."""
    print(text, file=sys.stderr, flush=True)


def commit() -> str:
    """`+` at its end: the checkout differed from that commit."""
    head = _git("rev-parse", "--short=12", "HEAD")
    return head + ("+" if head and _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def machine() -> str:
    """In words, without its name."""
    system = _field(Path("/etc/os-release"), "PRETTY_NAME", "=").strip('"')
    model = _field(Path("/proc/cpuinfo"), "model name", ":") or platform.machine()
    memory = _field(Path("/proc/meminfo"), "MemTotal", ":").split()[:1]
    gigabytes = f"{int(memory[0]) / 1e6:.0f} GB, " if memory else ""
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores ({model}), {gigabytes}{system}, Linux {platform.release()}"


def _field(path: Path, key: str, sign: str) -> str:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return ""
    found = (rest for line in lines for name, _, rest in [line.partition(sign)]
             if name.strip() == key)  # fmt: skip
    return next(found, "").strip()


def _installed(packages: Iterable[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def _rounded(number: float) -> float:
    """Four digits are more than any of these measurements is good for."""
    return float(f"{number:.4g}")
