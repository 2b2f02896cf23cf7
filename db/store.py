"""SqlStore: the port Store over a database. One process writes: the loop's.

A save is one transaction. Values are written whole; of a snapshot only what changed since the last
one (watched.py). Used from one thread at a time. Where several unicronds share the database, each
transaction ends with a look at who leads (lease.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Table, bindparam, delete, func, insert, select, update

from db import audit, history, knowledge, lease, migrate, schema, spells
from db.audit import Audited
from db.codec import CodecError, decode, dumps, loads
from db.engine import FileGuard, translated_errors, writing_engine
from db.knowledge import Knowledge
from db.watched import AllocationRow, Difference, Written, after, difference
from detectors.trust import MOST_REVIEWS
from unicrond.core.leader import Row
from unicrond.errors import BadInput, StoreUnavailable
from unicrond.model.cluster import Allocation, Node, Snapshot
from unicrond.model.decision import Action, ActionKind, Decision, Mode, Outcome, OutcomeState
from unicrond.model.incident import Incident, IncidentState, Review
from unicrond.model.pause import Pause, Pauses
from unicrond.model.run import Run
from unicrond.ports import Changes, JournalEntry, Saved

DRAINS_WITHIN_SECONDS = 86_400.0
ROWS_AT_ONCE = 500
ACTION_KEYS = ("incident_id", "generation", "ordinal")
MODE_KEY, PAUSES_KEY = "mode", "pauses"

T = TypeVar("T")


def open_store(url: str) -> SqlStore:
    """Creates the tables in an empty database. Raises BadInput for a database that is not for this
    program (db/migrate.py) and StoreUnavailable for one that does not answer."""
    engine = writing_engine(url)
    try:
        migrate.ensure_ready(engine)
    except (BadInput, StoreUnavailable):
        engine.dispose()
        raise
    return SqlStore(engine)


def incident_ended(incident: Incident) -> bool:
    return incident.state in (IncidentState.RESOLVED, IncidentState.CLOSED)


class SqlStore:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._guard = FileGuard(engine)
        self._written: Written | None = None
        self._phases = spells.Phases()
        self._saves: int | None = None  # number of the last save
        self._lease: Row | None = None

    def fence(self, held: Row) -> None:
        """From now on everything raises LeaseLost, and nothing is written, once it is another's."""
        self._lease = held

    def close(self) -> None:
        self._engine.dispose()

    def load(self) -> Saved:
        return self._within(_load)

    def save(self, changes: Changes) -> None:
        def write(connection: Connection) -> Written | None:
            number = _next_save(connection) if self._saves is None else self._saves + 1
            _save(connection, changes, number)
            if changes.at:
                self._phases.write(connection, changes.runs, changes.at)
            self._saves = number
            if changes.snapshot is None:
                return self._written
            written = self._written or _read_written(connection)
            return _save_snapshot(connection, written, changes.snapshot)

        self._written = self._within(write)
        self._phases.keep()

    def learn(self, known: Knowledge) -> None:
        """What was observed, learned and proposed beside the state."""

        def write(connection: Connection) -> None:
            knowledge.write(connection, known)
            _append(connection, schema.decisions, [_decision_row(d) for d in known.decisions])
            _append(connection, schema.journal, [_journal_row(entry) for entry in known.journal])

        self._within(write)

    def audit(self, entry: Audited) -> None:
        """Notes a command, whatever came of it."""
        self._within(lambda connection: audit.write(connection, entry))

    def forget(self, before: float) -> int:
        """Deletes some of what ended before that time (history.py); 0: nothing is left of it."""
        return self._within(lambda connection: history.forget(connection, before))

    def put_meta(self, key: str, value: object) -> None:
        """One JSON value beside the state, such as the loop's heartbeat."""
        self._within(lambda connection: _put_meta(connection, key, value))

    def _within(self, work: Callable[[Connection], T]) -> T:
        with translated_errors(self._engine):
            self._guard.check()
            with self._engine.begin() as connection:
                done = work(connection)
                if self._lease is not None:
                    lease.check_held(connection, self._lease)
                return done


def _load(connection: Connection) -> Saved:
    runs, incidents, actions = schema.runs.c, schema.incidents.c, schema.actions.c
    mode = _get_meta(connection, MODE_KEY)
    live = select(runs.doc).where(runs.ended.is_(False)).order_by(runs.run_id)
    open_ = select(incidents.doc).where(incidents.ended.is_(False)).order_by(incidents.incident_id)
    unfinished = (
        select(actions.intent)
        .where(actions.outcome_state.is_(None))
        .order_by(actions.incident_id, actions.generation, actions.ordinal)
    )
    last_incident, last_ordinal = history.last_forgotten(connection)
    incident = connection.scalar(select(func.max(incidents.incident_id))) or 0
    ordinal = connection.scalar(select(func.max(actions.ordinal)))
    return Saved(
        runs=tuple(_read(Run, connection.scalars(live))),
        incidents=tuple(_read(Incident, connection.scalars(open_))),
        unfinished=tuple(_read(Action, connection.scalars(unfinished))),
        next_incident_id=max(incident, last_incident) + 1,
        next_ordinal=max(-1 if ordinal is None else ordinal, last_ordinal) + 1,
        mode=None if mode is None else Mode(str(mode)),
        pauses=pauses_of(_get_meta(connection, PAUSES_KEY)),
        drains=_recent_drains(connection),
        reviews=newest_reviews(connection),
    )


def pauses_of(data: object) -> tuple[Pause, ...]:
    try:
        return () if data is None else decode(Pauses, data).held
    except CodecError as error:
        raise StoreUnavailable(f"database holds a value that cannot be read: {error}") from error


def _read(cls: type[T], docs: Iterable[str]) -> list[T]:
    try:
        return [loads(cls, doc) for doc in docs]
    except CodecError as error:
        raise StoreUnavailable(f"database holds a value that cannot be read: {error}") from error


def newest_reviews(connection: Connection) -> tuple[Review, ...]:
    """As many as are believed, oldest first."""
    c = schema.reviews.c
    newest = select(c.doc).order_by(c.incident_id.desc()).limit(MOST_REVIEWS)
    return tuple(reversed(_read(Review, connection.scalars(newest))))


def _recent_drains(connection: Connection) -> tuple[tuple[float, str], ...]:
    """Of the day before the last one: no clock is asked, and whoever counts looks at the times."""
    c = schema.actions.c
    done = (c.kind == ActionKind.DRAIN.value) & (c.outcome_state == OutcomeState.DONE.value)
    latest = connection.scalar(select(func.max(c.outcome_at)).where(done))
    if latest is None:
        return ()
    query = select(c.outcome_at, c.node).where(done, c.outcome_at > latest - DRAINS_WITHIN_SECONDS)
    return tuple(
        (row.outcome_at, row.node) for row in connection.execute(query.order_by(c.outcome_at))
    )


def _next_save(connection: Connection) -> int:
    """Numbers rise over restarts too: a reader asks for what was written after the last it saw."""
    newest = (select(func.max(table.c.saved)) for table in (schema.runs, schema.incidents))
    return 1 + max(connection.scalar(query) or 0 for query in newest)


def _save(connection: Connection, changes: Changes, number: int) -> None:
    saved = {"saved": number}
    _put(connection, schema.runs, ("run_id",), [_run_row(run) | saved for run in changes.runs])
    incidents = [_incident_row(incident) | saved for incident in changes.incidents]
    _put(connection, schema.incidents, ("incident_id",), incidents)
    _append(connection, schema.decisions, [_decision_row(d) for d in changes.decisions])
    _put(
        connection, schema.actions, ACTION_KEYS, [_intent_row(action) for action in changes.intents]
    )
    _join_outcomes(connection, changes.outcomes)
    _append(connection, schema.journal, [_journal_row(entry) for entry in changes.journal])
    reviews = [{"incident_id": r.incident_id, "doc": dumps(r)} for r in changes.reviews]
    _put(connection, schema.reviews, ("incident_id",), reviews)
    if changes.mode is not None:
        _put_meta(connection, MODE_KEY, changes.mode)
    if changes.pauses is not None:
        _put_meta(connection, PAUSES_KEY, Pauses(changes.pauses))


def _put(
    connection: Connection, table: Table, keys: Sequence[str], rows: Sequence[dict[str, Any]]
) -> None:
    """Insert or update, in words that every database knows; there is one writer."""
    for at in range(0, len(rows), ROWS_AT_ONCE):
        part = {tuple(row[key] for key in keys): row for row in rows[at : at + ROWS_AT_ONCE]}
        columns = [table.c[key] for key in keys]
        near = columns[0].in_({values[0] for values in part})
        there = {tuple(row) for row in connection.execute(select(*columns).where(near))}
        _append(connection, table, [row for values, row in part.items() if values not in there])
        _update(connection, table, keys, [row for values, row in part.items() if values in there])


def _append(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        connection.execute(insert(table), rows)


def _join_outcomes(connection: Connection, outcomes: Sequence[Outcome]) -> None:
    """An outcome whose intent is unknown was no act of ours; the journal has it."""
    rows = [
        {
            "incident_id": outcome.key.incident_id,
            "generation": outcome.key.generation,
            "ordinal": outcome.key.ordinal,
            "outcome_state": outcome.state.value,
            "outcome_at": outcome.at,
            "outcome": dumps(outcome),
        }
        for outcome in outcomes
    ]
    _update(connection, schema.actions, ACTION_KEYS, rows)


def _put_meta(connection: Connection, key: str, value: object) -> None:
    _put(connection, schema.meta, ("key",), [{"key": key, "value": dumps(value)}])


def _get_meta(connection: Connection, key: str) -> object:
    value = connection.scalar(select(schema.meta.c.value).where(schema.meta.c.key == key))
    return None if value is None else json.loads(value)


def _run_row(run: Run) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "user": run.user,
        "state": run.state.value,
        "ended": run.state.ended,
        "ended_at": (run.ended_at or None) if run.state.ended else None,
        "doc": dumps(run),
    }


def _incident_row(incident: Incident) -> dict[str, Any]:
    return {
        "incident_id": incident.incident_id,
        "run_id": incident.run_id,
        "root_node": incident.root_node,
        "state": incident.state.value,
        "ended": incident_ended(incident),
        "opened_at": incident.opened_at,
        "ended_at": (incident.closed_at or None) if incident_ended(incident) else None,
        "doc": dumps(incident),
    }


def _decision_row(decision: Decision) -> dict[str, Any]:
    return {
        "incident_id": decision.incident_id,
        "run_id": decision.run_id,
        "at": decision.at,
        "doc": dumps(decision),
    }


def _intent_row(action: Action) -> dict[str, Any]:
    return {
        "incident_id": action.key.incident_id,
        "generation": action.key.generation,
        "ordinal": action.key.ordinal,
        "kind": action.kind.value,
        "run_id": action.run_id,
        "node": action.node,
        "intent": dumps(action),
    }


def _journal_row(entry: JournalEntry) -> dict[str, Any]:
    return {f.name: getattr(entry, f.name) for f in fields(entry)} | {"data": dumps(entry.data)}


def _read_written(connection: Connection) -> Written:
    """What the tables say: asked once, then remembered."""
    a, n = schema.allocations.c, schema.nodes.c
    rows = connection.execute(select(a.id, a.doc).where(a.gone_at.is_(None))).all()
    allocations = [AllocationRow(row.id, _read(Allocation, [row.doc])[0]) for row in rows]
    nodes = _read(Node, connection.scalars(select(n.doc)))
    return Written(
        {row.allocation.job_id: row for row in allocations}, {node.name: node for node in nodes}
    )


def _save_snapshot(connection: Connection, written: Written, snapshot: Snapshot) -> Written:
    found = difference(written, snapshot)
    rows = _save_allocations(connection, found, snapshot.at)
    spells.write_spells(connection, written, found, snapshot.at)
    nodes = [_node_row(node, snapshot.at) for node in found.nodes]
    _append(connection, schema.nodes, [row for row in nodes if row["name"] not in written.nodes])
    _update(connection, schema.nodes, ("name",), [r for r in nodes if r["name"] in written.nodes])
    for name in found.nodes_removed:
        connection.execute(delete(schema.nodes).where(schema.nodes.c.name == name))
    return after(written, snapshot, rows)


def _save_allocations(connection: Connection, found: Difference, at: float) -> Mapping[int, int]:
    table = schema.allocations
    _update(connection, table, ("id",), [{"id": old.row, "gone_at": at} for old in found.gone])
    changed = [_allocation_row(row.allocation, at) | {"id": row.row} for row in found.changed]
    _update(connection, table, ("id",), changed)
    before = connection.scalar(select(func.max(table.c.id))) or 0
    _append(connection, table, [_allocation_row(allocation, at) for allocation in found.added])
    new = select(table.c.job_id, table.c.id).where(table.c.id > before)
    return {row.job_id: row.id for row in connection.execute(new)}


def _update(
    connection: Connection, table: Table, keys: Sequence[str], rows: Sequence[dict[str, Any]]
) -> None:
    if not rows:
        return
    statement = (
        update(table)
        .where(*(table.c[key] == bindparam(f"this_{key}") for key in keys))
        .values({name: bindparam(f"new_{name}") for name in rows[0] if name not in keys})
    )
    connection.execute(
        statement,
        [{f"{'this' if n in keys else 'new'}_{n}": v for n, v in row.items()} for row in rows],
    )


def _node_row(node: Node, at: float) -> dict[str, Any]:
    return {"name": node.name, "state": node.state.value, "changed_at": at, "doc": dumps(node)}


def _allocation_row(allocation: Allocation, at: float) -> dict[str, Any]:
    return {
        "job_id": allocation.job_id,
        "user": allocation.user,
        "account": allocation.account,
        "partition": allocation.partition,
        "state": allocation.state.value,
        "gpus": allocation.gpus,
        "submit_time": allocation.submit_time,
        "start_time": allocation.start_time,
        "end_time": allocation.end_time,
        "changed_at": at,
        "doc": dumps(allocation),
    }
