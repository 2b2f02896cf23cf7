"""Changes after which a plan may be possible that was not before, and of which nothing is to tell.

a run trains again, or has other nodes · it may grow again · nodes are free that were held
a mode, a pause
"""

from __future__ import annotations

from collections.abc import Mapping

from unicrond.core.state import State
from unicrond.model.cluster import Allocation


class Stirs:
    def __init__(self) -> None:
        self._was: object = None
        self._jobs: Mapping[int, Allocation] = {}
        self._held: frozenset[str] = frozenset()

    def look(self, state: State, now: float) -> bool:
        """After each turn; nodes are looked at only when a snapshot told of them."""
        if state.allocations is not self._jobs:
            self._jobs = state.allocations
            jobs = (job for job in self._jobs.values() if job.state.live)
            self._held = frozenset(node for job in jobs for node in job.nodes)
        runs = tuple(
            (r.run_id, r.generation, r.state, r.mode, bool(r.healing or r.joining), r.companions,
             now < max(r.no_growth_until, r.hands_off_until))
            for r in state.live_runs()
        )  # fmt: skip
        was, self._was = self._was, (state.mode, state.pauses, runs, self._held)
        return was is not None and was != self._was
