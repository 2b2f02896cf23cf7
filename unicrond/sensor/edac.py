"""Errors of the host's memory as its controllers count them, from /sys/devices/system/edac."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from detectors.readings import Memory, Sighting, memory_changed, memory_crept
from unicrond.agent.sensors.runner import SensorOff

CREEP_SECONDS = 60.0
MOST_CONTROLLERS = 256


class Edac:
    """`before`: counts of an earlier look; what was there before the first look is not told."""

    name = "edac"
    timeout_seconds = 10.0
    pause_seconds = 0.5

    def __init__(
        self,
        sys_root: Path,
        before: dict[str, Memory] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = sys_root / "devices/system/edac/mc"
        self._clock = clock
        self.counts = dict(before or {})
        self._marks: dict[str, Memory] = {}
        self._marked_at = clock()

    def look(self) -> Iterator[Sighting]:
        seen = dict(self._read())
        if not seen:
            raise SensorOff(f"no memory controller in {self._folder}")
        for where, now in seen.items():
            yield from memory_changed(where, self.counts.get(where, now), now)
            yield from memory_crept(where, self._marks.get(where, now), now)
        self.counts = seen
        if self._clock() >= self._marked_at + CREEP_SECONDS:
            self._marks, self._marked_at = seen, self._clock()
        else:
            self._marks = {**seen, **self._marks}

    def _read(self) -> Iterator[tuple[str, Memory]]:
        for path in sorted(self._folder.glob("mc[0-9]*"))[:MOST_CONTROLLERS]:
            yield path.name, Memory(_count(path / "ue_count"), _count(path / "ce_count"))


def _count(path: Path) -> int:
    try:
        text = path.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdecimal() else 0
