"""A fault that is seen a thousand times is told once, and then how often. Pure; bounded."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from detectors.readings import Sighting

AGAIN_SECONDS = 60.0  # between two tellings of one fault
REMEMBERED = 256
FRESH_A_MINUTE = 30  # faults of kinds or places not seen before


@dataclass(slots=True)
class _Told:
    sighting: Sighting
    at: float
    untold: int = 0


class Repeats:
    def __init__(self) -> None:
        self._told: OrderedDict[tuple[str, str, str, str], _Told] = OrderedDict()
        self._fresh: list[float] = []

    def see(self, sighting: Sighting, now: float, count: int = 1) -> int:
        """How many sightings to tell of now, 0 for none: it is only counted."""
        known = self._told.get(sighting.key)
        if known is None:
            self._fresh = [at for at in self._fresh if at > now - 60]
            if len(self._fresh) >= FRESH_A_MINUTE:
                return 0
            self._fresh.append(now)
            self._told[sighting.key] = _Told(sighting, now)
            if len(self._told) > REMEMBERED:
                self._told.popitem(last=False)
            return count
        known.untold += count
        known.sighting = sighting
        return self._tell(known, now)

    def due(self, now: float) -> list[tuple[Sighting, int]]:
        """What was counted and is to be told by now, with how many."""
        pending = [told for told in self._told.values() if told.untold]
        return [(told.sighting, count) for told in pending if (count := self._tell(told, now))]

    def _tell(self, told: _Told, now: float) -> int:
        if now < told.at + AGAIN_SECONDS:
            return 0
        count, told.untold, told.at = told.untold, 0, now
        return count
