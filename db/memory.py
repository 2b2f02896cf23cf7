"""MemoryStore: the port Store without a database, for tests and simulation.

What it keeps is encoded, like in a database: nothing that the caller changes afterwards reaches it,
and what cannot be stored is refused. `fault` makes it fail as a full disk would.
"""

from __future__ import annotations

from dataclasses import replace

from db.codec import dumps, loads
from db.store import DRAINS_WITHIN_SECONDS, incident_ended
from detectors.trust import MOST_REVIEWS
from unicrond.core.leader import NOBODY, Row
from unicrond.errors import StoreUnavailable
from unicrond.model.cluster import Snapshot
from unicrond.model.decision import (
    Action,
    ActionKey,
    ActionKind,
    Decision,
    Mode,
    Outcome,
    OutcomeState,
)
from unicrond.model.incident import Incident, Review
from unicrond.model.pause import Pauses
from unicrond.model.run import Run
from unicrond.ports import Changes, JournalEntry, Saved


class MemoryStore:
    def __init__(self) -> None:
        self.fault = ""
        self.journal: list[JournalEntry] = []
        self.decisions: list[Decision] = []
        self.intents: dict[ActionKey, Action] = {}
        self.outcomes: dict[ActionKey, Outcome] = {}
        self.snapshot: Snapshot | None = None
        self._runs: dict[int, str] = {}
        self._incidents: dict[int, str] = {}
        self._mode: Mode | None = None
        self._pauses = dumps(Pauses())
        self._reviews: dict[int, str] = {}

    def load(self) -> Saved:
        self._check()
        incidents = [loads(Incident, doc) for _, doc in sorted(self._incidents.items())]
        runs = [loads(Run, doc) for _, doc in sorted(self._runs.items())]
        unfinished = [key for key in self.intents if key not in self.outcomes]
        return Saved(
            runs=tuple(run for run in runs if not run.state.ended),
            incidents=tuple(incident for incident in incidents if not incident_ended(incident)),
            unfinished=tuple(self.intents[key] for key in sorted(unfinished, key=_order)),
            next_incident_id=max(self._incidents, default=0) + 1,
            next_ordinal=max((key.ordinal for key in self.intents), default=-1) + 1,
            mode=self._mode,
            pauses=loads(Pauses, self._pauses).held,
            drains=self._recent_drains(),
            reviews=tuple(
                loads(Review, doc) for _, doc in sorted(self._reviews.items())[-MOST_REVIEWS:]
            ),
        )

    def save(self, changes: Changes) -> None:
        self._check()
        runs = {run.run_id: dumps(run) for run in changes.runs}
        incidents = {incident.incident_id: dumps(incident) for incident in changes.incidents}
        reviews = {review.incident_id: dumps(review) for review in changes.reviews}
        intents = {action.key: loads(Action, dumps(action)) for action in changes.intents}
        journal = [loads(JournalEntry, dumps(entry)) for entry in changes.journal]
        outcomes = [loads(Outcome, dumps(outcome)) for outcome in changes.outcomes]
        self._runs |= runs
        self._reviews |= reviews
        self._incidents |= incidents
        self.intents |= intents
        self.journal += journal
        self.decisions += changes.decisions
        self.outcomes |= {o.key: o for o in outcomes if o.key in self.intents}
        self._mode = changes.mode or self._mode
        if changes.pauses is not None:
            self._pauses = dumps(Pauses(changes.pauses))
        self.snapshot = changes.snapshot or self.snapshot

    def _check(self) -> None:
        if self.fault:
            raise StoreUnavailable(self.fault)

    def _recent_drains(self) -> tuple[tuple[float, str], ...]:
        done = sorted(
            (outcome.at, self.intents[key].node)
            for key, outcome in self.outcomes.items()
            if outcome.state is OutcomeState.DONE and self.intents[key].kind is ActionKind.DRAIN
        )
        return tuple(d for d in done if d[0] > done[-1][0] - DRAINS_WITHIN_SECONDS)


class MemoryLeases:
    """The port Leases (lease.py), for tests."""

    def __init__(self) -> None:
        self._row: Row | None = None

    def read(self) -> Row | None:
        return self._row

    def take(self, seen: Row | None, wanted: Row) -> bool:
        if seen != self._row:
            return False
        self._row = wanted
        return True

    def renew(self, mine: Row) -> bool:
        if not self.held(mine):
            return False
        self._row = replace(mine, renewals=1 + (self._row.renewals if self._row else 0))
        return True

    def release(self, mine: Row) -> None:
        if self.held(mine):
            self._row = replace(mine, holder=NOBODY)

    def held(self, mine: Row) -> bool:
        row = self._row
        return row is not None and (row.term, row.holder) == (mine.term, mine.holder)


def _order(key: ActionKey) -> tuple[int, int, int]:
    return key.incident_id, key.generation, key.ordinal
