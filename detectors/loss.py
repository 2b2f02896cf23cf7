"""What the losses of one rank say: NaN, and spikes. Pure; runs in the agent.

One odd loss is everyday (a step that a gradient scaler skips, a hard batch): three in a row tell.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

RECENT = 64
ENOUGH = 20  # losses, before one of them can be a spike
IN_A_ROW = 3
CALM = 20  # ordinary ones in a row, before the next trouble is news
SPREADS = 10.0
LEAST = 0.25  # a spike is at least so much over the median, as a share of it


@dataclass(frozen=True, slots=True)
class Odd:
    not_a_number: bool  # or infinite
    number: int  # of the first such iteration
    loss: float
    usual: float


class LossWatch:
    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._odd: list[tuple[int, float]] = []
        self._calm = CALM
        self._told = False

    def take(self, number: int, loss: float) -> Odd | None:
        """Something to tell, once: until losses were ordinary again for a while."""
        usual, limit = self._expected()
        if math.isfinite(loss) and loss <= limit:
            self._ordinary(loss)
            return None
        self._calm = 0
        self._odd = [*self._odd, (number, loss)][-IN_A_ROW:]
        nonsense = [not math.isfinite(loss) for _, loss in self._odd]
        if self._told or len(nonsense) < IN_A_ROW:
            return None
        self._told = True
        return Odd(all(nonsense), self._odd[0][0], loss, usual)

    def _ordinary(self, loss: float) -> None:
        self._odd = []
        self._recent.append(loss)
        self._calm += 1
        if self._calm >= CALM:
            self._told = False

    def _expected(self) -> tuple[float, float]:
        """The median of late, and what is too much."""
        if len(self._recent) < ENOUGH:
            return math.nan, math.inf
        usual = _median(self._recent)
        spread = 1.5 * _median(deque(abs(loss - usual) for loss in self._recent))
        return usual, usual + max(SPREADS * spread, LEAST * abs(usual))


def _median(values: deque[float]) -> float:
    return sorted(values)[len(values) // 2]
