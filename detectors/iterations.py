"""How long iterations take, and when one has taken too long. Pure; one watch a rank.

    suspicion   longer than 3 x the average iteration (the paper's rule): look closer, do nothing
    overdue     longer than anything that ever ended well: 3 x the longest of late, at least 600 s
                more than the average, so that unannounced checkpoints and evaluations pass

What is learned belongs to a phase ("" is ordinary work); an announced phase has habits of its own.
The average leaves out what was longer than 3 x itself. Nothing is judged before three iterations
(compilation, warm-up): until then only `FIRST_SECONDS` counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from unicrond.model.strenum import StrEnum

FACTOR = 3.0
FLOOR_SECONDS = 0.3  # scheduling noise: shorter lapses mean nothing
WARM_UP = 3
FIRST_SECONDS = 1800.0
# NCCL itself gives a collective up after so long: a save or an evaluation that nobody announced is
# never ended sooner than without us. A rank that is halted is blamed at once (hang.py).
OVERDUE_MARGIN_SECONDS = 600.0
MEMORY = 50  # iterations that the average remembers
MOST_PHASES = 64


class Judgement(StrEnum):
    FINE = "fine"
    SUSPICION = "suspicion"
    OVERDUE = "overdue"


@dataclass(frozen=True, slots=True)
class Habits:
    """Of one phase: seconds an occurrence takes."""

    count: int = 0
    mean: float = 0.0
    longest: float = 0.0  # of late: it fades by one part in MEMORY an occurrence

    def after(self, seconds: float) -> Habits:
        count = min(self.count + 1, MEMORY)
        ordinary = self.count < WARM_UP or seconds <= FACTOR * self.mean
        first = self.count == 0 or (self.count < WARM_UP and seconds < self.mean)
        mean = self.mean + (seconds - self.mean) / count if ordinary else self.mean
        return Habits(
            self.count + 1,
            seconds if first else mean,
            max(seconds, self.longest * (1 - 1 / MEMORY)) if self.count else 0.0,
        )

    def judge(self, seconds: float) -> Judgement:
        if self.count < WARM_UP:
            return Judgement.FINE if seconds < FIRST_SECONDS else Judgement.OVERDUE
        if seconds <= max(FACTOR * self.mean, FLOOR_SECONDS):
            return Judgement.FINE
        limit = max(FACTOR * self.longest, self.mean + OVERDUE_MARGIN_SECONDS)
        return Judgement.SUSPICION if seconds <= limit else Judgement.OVERDUE


@dataclass(frozen=True, slots=True)
class Watch:
    """What is known of one rank. Times are seconds on one monotonic clock."""

    iterations: int = 0
    iteration_at: float = 0.0
    phase: str = ""
    phase_at: float = 0.0
    habits: Mapping[str, Habits] = field(default_factory=dict)

    def of(self, phase: str) -> Habits:
        return self.habits.get(phase, Habits())


def observe(
    watch: Watch, now: float, iterations: int, iteration_at: float, phase: str, phase_at: float
) -> tuple[Watch, Judgement]:
    """Takes one look at a rank: `iterations` complete, the last at `iteration_at`, in `phase` since
    `phase_at`."""
    watch = _phase_ended(watch, phase, phase_at)
    watch = _iterated(watch, iterations, iteration_at)
    watch = replace(watch, phase=phase, phase_at=phase_at)
    if not watch.iterations:
        return watch, Judgement.FINE  # it tells no iterations (yet): nothing can be said
    if phase:
        return watch, watch.of(phase).judge(now - phase_at)
    # the time of a phase that just ended is not held against the iteration around it
    return watch, watch.of("").judge(now - max(iteration_at, phase_at))


def _phase_ended(watch: Watch, phase: str, phase_at: float) -> Watch:
    if not watch.phase or phase == watch.phase or len(watch.habits) >= MOST_PHASES:
        return watch
    seen = watch.of(watch.phase).after(phase_at - watch.phase_at)
    return replace(watch, habits={**watch.habits, watch.phase: seen})


def _iterated(watch: Watch, iterations: int, iteration_at: float) -> Watch:
    new = iterations - watch.iterations
    if new <= 0:
        return watch
    habits = watch.habits
    if watch.iterations and not watch.phase:
        start = max(watch.iteration_at, watch.phase_at)
        each = max(0.0, iteration_at - start) / new
        habits = {**habits, "": watch.of("").after(each)}
    return replace(watch, iterations=iterations, iteration_at=iteration_at, habits=habits)
