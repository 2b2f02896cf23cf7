"""Runs sensors, each in a daemon thread: one that gets no answer holds up nothing and goes off."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from detectors.readings import Sighting, stuck
from unicrond.agent.sensors.repeats import Repeats

log = logging.getLogger(__name__)


class SensorOff(Exception):  # noqa: N818 - no error: there is nothing to look at
    """This sensor has nothing to look at on this node."""


class Sensor(Protocol):
    name: str
    timeout_seconds: float  # of one look
    pause_seconds: float  # between looks

    def look(self) -> Iterable[Sighting]:
        """Blocks for a second or so at most. SensorOff ends it for good."""


@dataclass(slots=True)
class _Watched:
    sensor: Sensor
    looking_since: float | None = None  # monotonic
    off: bool = False
    repeats: Repeats = field(default_factory=Repeats)  # a flood of one hides no other's word


class Sensors:
    """`tell` takes a sighting and how many of its kind there were, in the loop of `start`."""

    def __init__(self, sensors: Sequence[Sensor], tell: Callable[[Sighting, int], None]) -> None:
        self._watched = [_Watched(sensor) for sensor in sensors]
        self._tell = tell
        self._stopped = threading.Event()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        for watched in self._watched:
            name = f"sensor-{watched.sensor.name}"
            threading.Thread(
                target=self._watch, args=(watched, loop), name=name, daemon=True
            ).start()

    def stop(self) -> None:
        """Waits for nobody: a thread that is stuck dies with the process."""
        self._stopped.set()

    def check(self, now: float) -> None:
        """To be called every now and then, in the loop."""
        for watched in self._watched:
            since, limit = watched.looking_since, watched.sensor.timeout_seconds
            if not watched.off and since is not None and now > since + limit:
                watched.off = True
                self._tell(stuck(watched.sensor.name, now - since), 1)
            for sighting, count in watched.repeats.due(now):
                self._tell(sighting, count)

    def _watch(self, watched: _Watched, loop: asyncio.AbstractEventLoop) -> None:
        sensor = watched.sensor
        try:
            while not self._stopped.wait(sensor.pause_seconds) and not watched.off:
                watched.looking_since = time.monotonic()
                seen = Counter(sensor.look())
                watched.looking_since = None
                if seen and not watched.off:
                    loop.call_soon_threadsafe(self._take, watched, seen)
        except SensorOff as off:
            watched.off = True
            log.info("sensor=%s off: %s", sensor.name, off)
        except RuntimeError:
            if not loop.is_closed():  # the agent has ended meanwhile
                raise

    def _take(self, watched: _Watched, seen: Counter[Sighting]) -> None:
        now = time.monotonic()
        for sighting, count in seen.items():
            if told := watched.repeats.see(sighting, now, count):
                self._tell(sighting, told)


def body(sighting: Sighting, count: int) -> dict[str, object]:
    """What the link carries of it."""
    return {
        "text": sighting.evidence,
        "data": {
            "source": sighting.source,
            "kind": str(sighting.kind),
            "severity": str(sighting.severity),
            "where": sighting.where,
            "count": count,
        },
    }
