"""Which rank is slower than its peers, and whether a run is slower than it was. Pure.

A rank's own time over the median of the others' (the same window of iterations, so what they have
in common cancels out) is summed up as long as it is too high (CUSUM):

    score = max(0, score + log ratio - drift)      found once it comes to the threshold, which is
    threshold = noise^2 * ln(1 / p) / (2 * drift)  as much as it gets, and well again at 0

So a quiet run tells a rank that is 10 % slow within three windows, and one that is all jitter takes
as many as certainty needs. Ranks that differ by design (stages of a pipeline) raise the drift. The
run itself is held against the median of its own past in the same way: over 1.1 x.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from unicrond.model.pace import Pace

SLOW = math.log(1.1)
DRIFT = SLOW / 2  # a rank that is 10 % slow is found, one that is 4 % slow is not
CLIP = 0.15  # one window alone finds nobody
LEAST = 0.12
CERTAINTY = math.log(1e10)  # 1 / p of a false one, a rank and window
FIRST_NOISE = 0.03
REMEMBERS = 16  # windows that noise and level are learned from
LARGEST_JUMP = 0.5
WARM_UP = 2  # windows
SETTLES = 4  # windows after which the noise is known
BY_DESIGN = 0.02  # ranks that differ less are equal
MOST_TIMES = 3  # found in one generation: what comes and goes is known by then
OPEN = 8  # windows that wait for some rank
PAST = 256
ENOUGH_PAST = 16
NEW_NORMAL = 400  # windows after which a slower run is what it is


@dataclass(frozen=True, slots=True)
class Finding:
    """`rank` None: the run. `over`: it is well again."""

    rank: int | None
    ratio: float
    seconds: float
    usual_seconds: float
    over: bool = False


@dataclass(slots=True)
class Trail:
    """How far something was above what it should be, window by window."""

    score: float = 0.0
    level: float = 0.0
    noise: float = FIRST_NOISE
    last: float = math.nan
    windows: int = 0
    found: bool = False
    times: int = 0

    def add(self, excess: float, drift: float, noise: float = 0.0) -> bool:
        """Whether it changed between well and found."""
        self._learn(excess)
        spread = max(self.noise, noise)
        certain = max(LEAST, spread * spread * CERTAINTY / (2 * drift))
        may = self.windows >= SETTLES and (self.found or self.times < MOST_TIMES)
        threshold = certain if may else math.inf
        step = min(excess, max(CLIP, 2 * self.noise)) - drift
        self.score = min(max(0.0, self.score + step), threshold)
        before = self.found
        self.found = self.score > 0 if before else self.score >= threshold
        self.times += self.found and not before
        return self.found is not before

    def _learn(self, excess: float) -> None:
        self.windows += 1
        share = 1 / min(self.windows, REMEMBERS)
        if self.windows > 1:
            jump = min(abs(excess - self.last), LARGEST_JUMP)
            self.noise += (0.886 * jump - self.noise) * share
        self.last = excess
        self.level += (excess - self.level) * share


@dataclass(slots=True)
class Speed:
    """Of the run as a whole, against its own past."""

    trail: Trail = field(default_factory=Trail)
    past: deque[float] = field(default_factory=lambda: deque(maxlen=PAST))
    found_for: int = 0

    def add(self, seconds: float) -> Finding | None:
        now = math.log(seconds)
        if len(self.past) < ENOUGH_PAST:
            self.past.append(now)
            return None
        usual = sorted(self.past)[len(self.past) // 2]
        if self.trail.score <= 0.0 and not self.trail.found:
            self.past.append(now)
        changed = self.trail.add(now - usual, SLOW)
        self.found_for = self.found_for + 1 if self.trail.found else 0
        if self.found_for > NEW_NORMAL:
            self.past.clear()
            self.trail, self.found_for, changed = Trail(times=self.trail.times), 0, True
        if not changed:
            return None
        ratio, over = math.exp(now - usual), not self.trail.found
        return Finding(None, ratio, seconds, math.exp(usual), over)


class Comparison:
    """Of the ranks of one generation, `nodes` by rank. Bounded: few floats a rank, few windows."""

    def __init__(self, generation: int, nodes: Mapping[int, str]) -> None:
        self.generation = generation
        self.nodes = nodes
        self._world = len(nodes)
        self._open: dict[int, dict[int, Pace]] = {}
        self._newest = WARM_UP - 1
        self._trails: dict[int, Trail] = {}
        self._speed = Speed()

    def take(self, rank: int, pace: Pace) -> list[Finding]:
        """Findings come with the word of the last rank about a window."""
        if pace.window <= self._newest or rank not in self.nodes:
            return []
        told = self._open.setdefault(pace.window, {})
        told[rank] = pace
        if len(told) < self._world:
            if len(self._open) > OPEN:
                del self._open[min(self._open)]
            return []
        self._newest = pace.window
        self._open = {window: by for window, by in self._open.items() if window > pace.window}
        return self._judge(told)

    def _judge(self, told: Mapping[int, Pace]) -> list[Finding]:
        ordered = sorted(pace.seconds for pace in told.values())
        slower = self._speed.add(ordered[len(ordered) // 2])
        own = {rank: p.own_seconds for rank, p in told.items() if p.own_seconds is not None}
        found = self._compare(own) if len(own) == self._world > 1 else []
        return [*found, slower] if slower else found

    def _compare(self, own: Mapping[int, float]) -> list[Finding]:
        ordered = sorted(own.values())
        trails = {rank: self._trails.setdefault(rank, Trail()) for rank in own}
        drift = DRIFT + self._by_design(list(trails.values()))
        noise = _low_median([trail.noise for trail in trails.values()])
        found = []
        for rank, seconds in own.items():
            usual = _of_the_others(ordered, seconds)
            ratio = seconds / usual
            if trails[rank].add(math.log(ratio), drift, noise):
                over = not trails[rank].found
                found.append(Finding(rank, ratio, seconds, usual, over))
        return found

    def _by_design(self, trails: Sequence[Trail]) -> float:
        if len(trails) < 3:
            return 0.0
        return max(0.0, _low_median([abs(trail.level) for trail in trails]) - BY_DESIGN)


def _low_median(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


def _of_the_others(ordered: Sequence[float], mine: float) -> float:
    """Their lower median: among two, the other one."""
    middle = (len(ordered) - 2) // 2
    return ordered[middle + 1] if mine <= ordered[middle] else ordered[middle]
