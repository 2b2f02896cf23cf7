"""Processes of this job that the kernel killed for want of memory, from its cgroup, v1 or v2."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from detectors.readings import Sighting, oom_kills
from unicrond.agent.sensors.runner import SensorOff

_JOB = re.compile(r"^(.*/job_\d+)(?:/|$)")


class Cgroup:
    name = "cgroup"
    timeout_seconds = 10.0
    pause_seconds = 0.5

    def __init__(self, sys_root: Path, membership: str) -> None:
        """`membership` is the text of /proc/self/cgroup."""
        self._file = events_file(sys_root / "fs/cgroup", membership)
        self._kills: int | None = None

    def look(self) -> Iterator[Sighting]:
        kills = self._read()
        if self._kills is not None:
            yield from oom_kills(self._kills, kills)
        self._kills = kills

    def _read(self) -> int:
        if self._file is None:
            raise SensorOff("this job has no memory cgroup")
        try:
            text = self._file.read_text()
        except OSError as error:
            raise SensorOff(f"{self._file}: {error.strerror}") from error
        found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
        return int(found[1]) if found else 0


def events_file(root: Path, membership: str) -> Path | None:
    """Of the job rather than of the step, where Slurm made a cgroup for it."""
    paths = {
        controllers: path
        for _, controllers, path in (line.split(":", 2) for line in membership.splitlines())
    }
    choices = [(root / "memory", paths.get("memory", ""), "memory.oom_control")]
    choices += [(root, paths.get("", ""), "memory.events")]
    for folder, path, name in choices:
        of_job = _JOB.match(path)
        file = folder / (of_job[1] if of_job else path).lstrip("/") / name
        if path and file.exists():
            return file
    return None
