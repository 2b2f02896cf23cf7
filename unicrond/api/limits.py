"""How often one may ask: a bucket for each, refilled with time, at most MOST_KNOWN buckets."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from unicrond.errors import UnicronError

MOST_KNOWN = 10_000


class TooMany(UnicronError):  # noqa: N818 - reads as what it is
    """Asked more often than allowed."""


@dataclass(frozen=True, slots=True)
class Rate:
    """`burst` at once, then `per_second`."""

    what: str
    per_second: float
    burst: float


READS = Rate("questions", 100.0, 400.0)
COMMANDS = Rate("commands", 1.0, 30.0)
FAILURES = Rate("wrong credentials", 0.2, 10.0)


class Limit:
    def __init__(self, rate: Rate, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = rate, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # left, when

    def take(self, who: str) -> None:
        """Raises TooMany; what was refused counts nothing."""
        self.check(who)
        left, at = self._now(who)
        self._left[who] = (left - 1.0, at)
        self._left.move_to_end(who)
        if len(self._left) > MOST_KNOWN:
            self._left.popitem(last=False)

    def check(self, who: str) -> None:
        left, _ = self._now(who)
        if left < 1.0:
            wait = (1.0 - left) / self._rate.per_second
            raise TooMany(f"too many {self._rate.what}: wait {wait:.1f} s")

    def _now(self, who: str) -> tuple[float, float]:
        now = self._clock()
        left, at = self._left.get(who, (self._rate.burst, now))
        return min(self._rate.burst, left + (now - at) * self._rate.per_second), now
