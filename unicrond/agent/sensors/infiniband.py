"""State and counters of InfiniBand and RoCE ports, from /sys/class/infiniband."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from detectors.readings import Port, Sighting, port_changed, port_crept
from unicrond.agent.sensors.runner import SensorOff

CREEP_SECONDS = 60.0
ERRORS = ("symbol_error", "port_rcv_errors", "local_link_integrity_errors")


class InfiniBand:
    name = "infiniband"
    timeout_seconds = 10.0
    pause_seconds = 0.5

    def __init__(self, sys_root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = sys_root / "class/infiniband"
        self._clock = clock
        self._ports: dict[str, Port] = {}  # that were up once
        self._marks: dict[str, Port] = {}
        self._marked_at = clock()
        self._down_since: dict[str, float] = {}

    def look(self) -> Iterator[Sighting]:
        ports = sorted(self._folder.glob("*/ports/*"))
        if not ports and not self._ports:
            raise SensorOff(f"no port in {self._folder}")
        now = self._clock()
        seen: dict[str, Port] = {}
        for path in ports:
            where = f"{path.parents[1].name}/{path.name}"
            seen[where] = port = self._read(path, where, now)
            if port.active or where in self._ports:
                before = self._ports.get(where, port)
                self._ports[where] = port
                yield from port_changed(where, before, port)
                yield from port_crept(where, self._marks.get(where, port), port)
        if now >= self._marked_at + CREEP_SECONDS:
            self._marks, self._marked_at = seen, now
        else:
            self._marks = {**seen, **self._marks}

    def _read(self, path: Path, where: str, now: float) -> Port:
        active = "ACTIVE" in _text(path / "state")
        if active:
            self._down_since.pop(where, None)
        since = now if active else self._down_since.setdefault(where, now)
        errors = sum(_count(path / "counters" / name) for name in ERRORS)
        return Port(active, _count(path / "counters/link_downed"), errors, now - since)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _count(path: Path) -> int:
    text = _text(path)
    return int(text) if text.isdigit() else 0
