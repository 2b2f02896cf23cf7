"""Sensors in threads: none holds up another, and a thousand sightings are one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable

from detectors.readings import Sighting
from detectors.verdict import Kind
from unicrond.agent.sensors.repeats import AGAIN_SECONDS, FRESH_A_MINUTE, REMEMBERED, Repeats
from unicrond.agent.sensors.runner import SensorOff, Sensors
from unicrond.model.incident import Severity

Told = list[tuple[Sighting, int]]


def sighting(where: str = "gpu 0", kind: Kind = Kind.ECC) -> Sighting:
    return Sighting("nvml", kind, Severity.SEV1, where, f"{where}: {kind}")


class Scripted:
    """Looks as it is told to."""

    pause_seconds = 0.005

    def __init__(self, name: str, look: Callable[[], Iterable[Sighting]], limit: float = 5) -> None:
        self.name, self.look, self.timeout_seconds = name, look, limit


async def watched(sensors: Sensors, told: Told, until: Callable[[Told], bool]) -> None:
    sensors.start(asyncio.get_running_loop())
    deadline = time.monotonic() + 5
    while not until(told) and time.monotonic() < deadline:
        sensors.check(time.monotonic())
        await asyncio.sleep(0.005)
    sensors.stop()


def test_a_sensor_without_an_answer_is_told_once_and_the_others_go_on() -> None:
    release, told = threading.Event(), Told()
    looks: list[int] = []

    def hangs() -> Iterable[Sighting]:
        release.wait(10)
        return [sighting("too late")]

    def works() -> Iterable[Sighting]:
        looks.append(1)
        return []

    sensors = Sensors(
        [Scripted("nvml", hangs, 0.05), Scripted("other", works)], lambda s, n: told.append((s, n))
    )

    async def story() -> None:
        await watched(sensors, told, lambda _: len(looks) > 40)
        release.set()
        await asyncio.sleep(0.05)

    asyncio.run(story())
    assert [(s.source, s.severity, n) for s, n in told] == [("nvml", Severity.NONE, 1)]


def test_a_sensor_with_nothing_to_look_at_ends_quietly() -> None:
    told: Told = []
    looks: list[int] = []

    def nothing() -> Iterable[Sighting]:
        looks.append(1)
        raise SensorOff("no GPU driver here")

    sensors = Sensors([Scripted("nvml", nothing, 0.01)], lambda s, n: told.append((s, n)))

    async def story() -> None:
        await watched(sensors, told, lambda _: bool(looks))
        await asyncio.sleep(0.05)
        sensors.check(time.monotonic())

    asyncio.run(story())
    assert (told, looks) == ([], [1])


def test_a_thousand_sightings_are_told_once_with_their_number() -> None:
    told: Told = []
    left = [sighting()] * 1000

    def look() -> Iterable[Sighting]:
        seen, left[:] = left[:100], left[100:]
        return seen

    sensors = Sensors([Scripted("nvml", look)], lambda s, n: told.append((s, n)))
    asyncio.run(watched(sensors, told, lambda _: not left))
    assert told == [(sighting(), 100)]


def test_what_is_only_counted_is_told_when_its_time_has_come() -> None:
    repeats = Repeats()
    assert repeats.see(sighting(), 0.0) == 1
    assert [repeats.see(sighting(), at) for at in (1.0, 2.0, 3.0)] == [0, 0, 0]
    assert repeats.due(AGAIN_SECONDS - 1) == []
    assert repeats.due(AGAIN_SECONDS) == [(sighting(), 3)]
    assert repeats.due(AGAIN_SECONDS) == []


def test_another_device_or_kind_is_another_fault() -> None:
    repeats = Repeats()
    seen = [sighting(), sighting("gpu 1"), sighting(kind=Kind.NVLINK)]
    assert [repeats.see(one, 0.0) for one in seen] == [1, 1, 1]


def test_a_flood_of_new_faults_is_bounded() -> None:
    repeats = Repeats()
    told = [repeats.see(sighting(f"gpu {n}"), n / 1000) for n in range(10_000)]
    assert sum(told) == FRESH_A_MINUTE
    for minute in range(1, 20):
        for n in range(FRESH_A_MINUTE):
            repeats.see(sighting(f"{minute} {n}"), 61.0 * minute)
    assert len(repeats._told) <= REMEMBERED
