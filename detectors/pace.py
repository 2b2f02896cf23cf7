"""What a rank's last iterations say of its speed, in few numbers. Pure; runs in the agent.

Iterations of a synchronous run take equally long on each rank: what tells a slow rank is the time
that it does not wait for others. So each `WINDOW` iterations become one `Pace`: the median time of
an iteration, and the median of what was its own. Windows are counted from the generation's start,
so those of all ranks are about the same iterations.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator

from unicrond.model.pace import Pace

WINDOW = 5
SHORTEST_SECONDS = 0.5  # between two that are told; of shorter windows only some are told
KEPT = 8


class Pacer:
    """Of one rank in one generation."""

    def __init__(self) -> None:
        self._window = 0
        self._seconds: list[float] = []
        self._own: list[float] = []
        self._told: deque[tuple[float, Pace]] = deque(maxlen=KEPT)

    def add(self, now: float, number: int, seconds: float, waited: float | None) -> None:
        """Iteration `number`, counted from 1, is complete."""
        window = (number - 1) // WINDOW
        if window != self._window:
            self._close(now)
            self._window = window
        if seconds > 0:
            self._seconds.append(seconds)
            if waited is not None:
                self._own.append(max(seconds - waited, 0.0))
        if number % WINDOW == 0:
            self._close(now)

    def since(self, time: float) -> Iterator[Pace]:
        return (pace for at, pace in self._told if at >= time)

    def _close(self, now: float) -> None:
        if len(self._seconds) > WINDOW // 2:
            usual = statistics.median(self._seconds)
            own = statistics.median(self._own) if self._own else 0.0
            if self._window % _stride(usual) == 0:
                self._told.append((now, Pace(self._window, usual, own or None)))
        self._seconds, self._own = [], []


def _stride(seconds: float) -> int:
    """Powers of two: ranks that choose differently still have windows in common."""
    stride = 1
    while stride < 1 << 20 and stride * WINDOW * seconds < SHORTEST_SECONDS:
        stride *= 2
    return stride
