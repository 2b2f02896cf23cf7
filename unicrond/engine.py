"""One turn of the loop, the same in production, in the simulator and in replay.

    events ─> Core.step ─> save (all or nothing) ─> look again ─> carry out

Nothing is carried out that was not saved. While the store does not answer, changes are kept and
merged, and no action is taken; what was not acknowledged is repeated by its source.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from unicrond.core.step import Core
from unicrond.errors import StoreUnavailable
from unicrond.model.decision import Action, Decision, Outcome, OutcomeState
from unicrond.model.events import Event, OutcomeArrived
from unicrond.ports import Changes, Store

log = logging.getLogger(__name__)
BACKLOG_LINES = 10_000  # of the journal, kept while the store does not answer


class Engine:
    """Drives a core against a store and a way to carry actions out. `decided` hears of decisions
    that are stored."""

    def __init__(
        self,
        core: Core,
        store: Store,
        perform: Callable[[Action], None],
        decided: Callable[[Decision], None] = lambda decision: None,
    ) -> None:
        self.core = core
        self._decided = decided
        self._store = store
        self._perform = perform
        self._backlog = Changes()
        self._refused: list[Event] = []
        self._away_since: float | None = None  # since when the store does not answer
        self.store_error = ""

    def turn(self, now: float, events: Iterable[Event]) -> bool:
        """Makes one turn. False: the store did not take it, and nothing was carried out."""
        refused, self._refused = self._refused, []
        frozen = self._away_since is not None
        changes = self.core.step(now, (*refused, *events), frozen)
        self._backlog = merge(self._backlog, changes) if self._backlog else changes
        if not self._save():
            self._away_since = now if self._away_since is None else self._away_since
            return False
        if self._away_since is not None:
            self.core.thaw(now - self._away_since)
            self._away_since = None
        for decision in self._backlog.decisions:
            self._decided(decision)
        todo, self._backlog = (*self._backlog.intents, *self._backlog.again), Changes()
        for action in todo:
            why = self.core.unwanted(action)
            if why:
                outcome = Outcome(action.key, now, OutcomeState.REFUSED, why)
                self._refused.append(OutcomeArrived(outcome))
            else:
                self._perform(action)
        return True

    def _save(self) -> bool:
        if not self._backlog:
            return True
        try:
            self._store.save(self._backlog)
        except StoreUnavailable as error:
            if str(error) != self.store_error:
                log.error("store does not answer, nothing is carried out: %s", error)
            self.store_error = str(error)
            return False
        if self.store_error:
            log.warning("store answers again; everything kept meanwhile is saved")
            self.store_error = ""
        for entry in self._backlog.journal:
            log.info("%s", entry.text, extra={"run": entry.run_id, "incident": entry.incident_id})
        return True


def merge(older: Changes, newer: Changes) -> Changes:
    """Two turns as one: the newest of each run and incident, everything else in order."""
    runs = {run.run_id: run for run in (*older.runs, *newer.runs)}
    incidents = {i.incident_id: i for i in (*older.incidents, *newer.incidents)}
    again = {action.key: action for action in (*older.again, *newer.again)}
    reviews = {review.incident_id: review for review in (*older.reviews, *newer.reviews)}
    intents = (*older.intents, *newer.intents)
    return replace(
        newer,
        runs=tuple(runs.values()),
        incidents=tuple(incidents.values()),
        decisions=(*older.decisions, *newer.decisions)[-BACKLOG_LINES:],
        intents=intents,
        outcomes=(*older.outcomes, *newer.outcomes),
        journal=(*older.journal, *newer.journal)[-BACKLOG_LINES:],
        again=tuple(a for a in again.values() if a not in intents),
        snapshot=newer.snapshot or older.snapshot,
        mode=newer.mode or older.mode,
        pauses=older.pauses if newer.pauses is None else newer.pauses,
        reviews=tuple(reviews.values()),
    )
