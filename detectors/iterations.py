"""How long iterations take, and when one has taken too long. Pure; one watch a rank.

    suspicion   longer than 3 x the median of late, and by half than the longest twentieth of late
                and than a phase that is due or keeps coming: look closer, do nothing
    overdue     longer than anything that ever ended well: 3 x the longest of late, 30 x the median,
                at least 600 s more than it: so unannounced checkpoints and evaluations pass

Phases that nobody announces are discovered: what took long at iterations n - 2p and n - p is due at
n. What takes long without such a period is known once it came three times. An announced phase has
habits of its own, and its time is no part of the iteration around it. Nothing is judged before
three iterations (compilation, warm-up): until then only `FIRST_SECONDS` counts. Time in which the
watcher itself did not look (a suspended job, a machine that stood still) is held against nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from unicrond.model.strenum import StrEnum

FACTOR = 3.0
KNOWN_FACTOR = 1.5  # over what is known to happen
FLOOR_SECONDS = 0.3  # scheduling noise: shorter lapses mean nothing
WARM_UP = 3
FIRST_SECONDS = 1800.0
# NCCL itself gives a collective up after so long: a save or an evaluation that nobody announced is
# never ended sooner than without us. A rank that is halted is blamed at once (hang.py).
OVERDUE_MARGIN_SECONDS = 600.0
OVERDUE_FACTOR = 30.0
FADES = 50  # iterations in which the longest fades
RECENT = 64
LONG = 32  # iterations that took long, remembered
SHORTEST_PERIOD = 4
OFTEN = 3
LEARN_EVERY = 8
LATE_SECONDS = 1.0  # between two looks
MOST_PHASES = 64


class Judgement(StrEnum):
    FINE = "fine"
    SUSPICION = "suspicion"
    OVERDUE = "overdue"


class Rhythm:
    """Of ordinary iterations; bounded, whatever comes."""

    def __init__(self) -> None:
        self.count = 0
        self.usual = 0.0  # seconds, the median of late
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._limit = FIRST_SECONDS
        self._longest = 0.0  # of late
        self._long: dict[int, float] = {}  # number -> seconds, oldest first
        self._stray: deque[tuple[int, float]] = deque(maxlen=LONG)  # those that were not due

    def add(self, number: int, seconds: float) -> None:
        """Iteration `number` is complete."""
        self.count += 1
        foreseen = 0.0
        if self.count > WARM_UP and seconds > self._limit:
            foreseen = self._took_long(number, seconds)
        if self.count > 1:  # the first one compiles
            self._longest = max(seconds, self._longest * (1 - 1 / FADES))
        if not foreseen:
            self._recent.append(seconds)
        if self.count <= 2 * LEARN_EVERY or self.count % LEARN_EVERY == 0:
            self._learn()

    def judge(self, number: int, seconds: float) -> Judgement:
        """Iteration `number` goes on for so long."""
        if self.count < WARM_UP:
            return Judgement.FINE if seconds < FIRST_SECONDS else Judgement.OVERDUE
        if seconds <= self._limit:
            return Judgement.FINE
        due = self._due(number)
        if seconds <= KNOWN_FACTOR * max(due, self._keeps_coming()):
            return Judgement.FINE
        limit = max(
            FACTOR * max(self._longest, due),
            OVERDUE_FACTOR * self.usual,
            self.usual + OVERDUE_MARGIN_SECONDS,
        )
        return Judgement.SUSPICION if seconds <= limit else Judgement.OVERDUE

    def _learn(self) -> None:
        ordered = sorted(self._recent)
        if not ordered:
            return
        self.usual = ordered[len(ordered) // 2]
        often = ordered[-OFTEN] if len(ordered) >= 2 * LEARN_EVERY else 0.0
        self._limit = max(FACTOR * self.usual, KNOWN_FACTOR * often, FLOOR_SECONDS)

    def _took_long(self, number: int, seconds: float) -> float:
        foreseen = self._due(number)
        self._long[number] = seconds
        if len(self._long) > LONG:
            del self._long[next(iter(self._long))]
        if not foreseen:
            self._stray.append((number, seconds))
        return foreseen

    def _due(self, number: int) -> float:
        """How long what is due at this iteration took the last times; 0: nothing is due."""
        longest = 0.0
        for last, seconds in self._long.items():
            period = number - last
            if period < SHORTEST_PERIOD:
                continue
            for before in (last - period, last - period - 1, last - period + 1):
                if before in self._long:
                    longest = max(longest, seconds, self._long[before])
        return longest

    def _keeps_coming(self) -> float:
        """What was not due, and came often all the same."""
        seconds = sorted(seconds for _, seconds in self._stray)
        return seconds[-OFTEN] if len(seconds) >= OFTEN else 0.0


@dataclass(frozen=True, slots=True)
class Spell:
    """Of one announced phase: seconds an occurrence takes."""

    count: int = 0
    mean: float = 0.0
    longest: float = 0.0  # of late

    def after(self, seconds: float) -> Spell:
        count = min(self.count + 1, FADES)
        mean = self.mean + (seconds - self.mean) / count
        return Spell(self.count + 1, mean, max(seconds, self.longest * (1 - 1 / FADES)))

    def judge(self, seconds: float) -> Judgement:
        if self.count < WARM_UP:
            return Judgement.FINE if seconds < FIRST_SECONDS else Judgement.OVERDUE
        known = max(FACTOR * self.mean, KNOWN_FACTOR * self.longest, FLOOR_SECONDS)
        if seconds <= known:
            return Judgement.FINE
        limit = max(FACTOR * self.longest, self.mean + OVERDUE_MARGIN_SECONDS)
        return Judgement.SUSPICION if seconds <= limit else Judgement.OVERDUE


@dataclass(slots=True)
class Habits:
    ordinary: Rhythm = field(default_factory=Rhythm)
    phases: dict[str, Spell] = field(default_factory=dict)

    def usual_seconds(self, phase: str) -> float:
        return self.phases.get(phase, Spell()).mean if phase else self.ordinary.usual


@dataclass(slots=True)
class Watch:
    """What is known of one rank. Times are seconds on one monotonic clock."""

    habits: Habits = field(default_factory=Habits)
    iterations: int = 0
    iteration_at: float = 0.0
    phase: str = ""
    phase_at: float = 0.0
    _looked_at: float = 0.0
    _late: float = 0.0  # seconds of the iteration or phase at work in which nobody looked

    def look(
        self, now: float, iterations: int, iteration_at: float, phase: str, phase_at: float
    ) -> Judgement:
        """Takes one look: `iterations` complete, the last at `iteration_at`, in `phase` since
        `phase_at`."""
        self._phase_ended(phase, phase_at)
        if (iterations, phase) != (self.iterations, self.phase):
            self._late = 0.0
        elif self._looked_at:
            self._late += max(0.0, now - self._looked_at - LATE_SECONDS)
        self._looked_at = now
        self.iterations, self.iteration_at = iterations, iteration_at
        self.phase, self.phase_at = phase, phase_at
        if not iterations:
            return Judgement.FINE  # it tells no iterations (yet): nothing can be said
        if phase:
            return self.habits.phases.get(phase, Spell()).judge(now - phase_at - self._late)
        # the time of a phase that just ended is not held against the iteration around it
        seconds = now - max(iteration_at, phase_at) - self._late
        return self.habits.ordinary.judge(iterations + 1, seconds)

    def learn(self, laps: Sequence[tuple[int, float]]) -> None:
        """Numbers and seconds of iterations that are complete, phases left out."""
        for number, seconds in laps:
            if seconds > 0:
                self.habits.ordinary.add(number, seconds)

    def _phase_ended(self, phase: str, phase_at: float) -> None:
        phases = self.habits.phases
        if not self.phase or phase == self.phase:
            return
        if self.phase in phases or len(phases) < MOST_PHASES:
            took = max(0.0, phase_at - self.phase_at - self._late)
            phases[self.phase] = phases.get(self.phase, Spell()).after(took)
