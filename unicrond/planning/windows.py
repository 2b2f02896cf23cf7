"""Iteration times, from the progress that the core notes of each run. Pure.

A window is a stretch of one generation in which a run made WINDOW_SECONDS and WINDOW_ITERATIONS of
progress. The first iterations of a generation are warm-up. A window in which the run failed, or was
healed, never ends; one with a checkpoint or an evaluation in it is slow, which the median bears.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from db.knowledge import Observation
from unicrond.model.run import Run, RunState

WINDOW_SECONDS = 30.0
WINDOW_ITERATIONS = 5
WARM_UP_ITERATIONS = 5
MOST_WAITING = 10_000  # observations that were not fetched


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where a window began."""

    generation: int
    counts: bool  # whether the run's iterations were counted for it, or told by it
    done: int
    at: float


class Windows:
    def __init__(self) -> None:
        self._marks: dict[int, _Mark] = {}
        self._ready: list[Observation] = []

    def look(self, runs: Iterable[Run]) -> None:
        """Once a second or so; reads a few fields of each run."""
        marks = dict[int, _Mark]()
        for run in runs:
            if (mark := self._after(run, self._marks.get(run.run_id))) is not None:
                marks[run.run_id] = mark
        self._marks = marks

    def fetch(self) -> tuple[Observation, ...]:
        """Those since the last call."""
        ready, self._ready = self._ready, []
        return tuple(ready)

    def _after(self, run: Run, mark: _Mark | None) -> _Mark | None:
        if run.state is not RunState.RUNNING or run.healing is not None or run.assignment is None:
            return None
        done = run.counted or max(0, run.iteration - run.generation_iteration)
        now = _Mark(run.generation, run.counted > 0, done, run.iteration_since)
        if done < WARM_UP_ITERATIONS or now.at < run.generation_since:
            return None
        if mark is None or not _goes_on(mark, now):
            return now
        iterations, seconds = now.done - mark.done, now.at - mark.at
        if iterations < WINDOW_ITERATIONS or seconds < WINDOW_SECONDS:
            return mark
        if len(self._ready) < MOST_WAITING:
            self._ready.append(
                Observation(
                    run.run_id,
                    run.assignment.world_size,
                    len(run.assignment.nodes),
                    now.at,
                    (seconds / iterations,),
                    iterations,
                )
            )
        return now


def _goes_on(mark: _Mark, now: _Mark) -> bool:
    same = (mark.generation, mark.counts) == (now.generation, now.counts)
    return same and now.done >= mark.done
