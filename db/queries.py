"""Reading for the API, on a connection of its own that cannot write.

Lists come a page at a time. A page's `next` is where the following one begins: the key of the last
item shown, so that rows which are added meanwhile neither repeat nor hide any.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from sqlalchemy import Column, ColumnElement, Connection, Select, Table, func, or_, select
from sqlalchemy import Row as Fetched

from db import lease, migrate, schema
from db.audit import Audited
from db.codec import CodecError, loads
from db.engine import reading_engine, translated_errors
from db.knowledge import Observation, Planned
from db.schema import REVISIONS
from db.store import newest_reviews
from unicrond.core.leader import Row
from unicrond.errors import BadInput, StoreUnavailable
from unicrond.model.cluster import Allocation, Node
from unicrond.model.decision import Action, Decision, Outcome
from unicrond.model.incident import Incident, IncidentState, Review
from unicrond.model.run import Run
from unicrond.ports import JournalEntry

NO_INCIDENT = 0  # of a decision that no incident called for
CHOICES = ("decision", "plan")  # lines with a decision behind them

T = TypeVar("T")
Conditions = Sequence[ColumnElement[bool]]


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: tuple[T, ...]
    next: str | None = None  # None: nothing follows


@dataclass(frozen=True, slots=True)
class SeenAllocation:
    """`changed_at`: when it was first seen as it is; `gone_at`: when Slurm no longer listed it.
    `row`: its number in the table."""

    allocation: Allocation
    managed: bool
    changed_at: float
    gone_at: float | None
    row: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class SeenNode:
    node: Node
    changed_at: float


@dataclass(frozen=True, slots=True)
class StoryLine:
    """A line of the journal and, where it tells of one, the decision behind it."""

    entry: JournalEntry
    decision: Decision | None = None


@dataclass(frozen=True, slots=True)
class Act:
    """An intent and how it ended, None while it has not."""

    action: Action
    outcome: Outcome | None


class Queries:
    def __init__(self, url: str) -> None:
        self._engine = reading_engine(url)

    def close(self) -> None:
        self._engine.dispose()

    def check(self) -> None:
        """Raises StoreUnavailable when the database does not answer or is not up to date."""
        found = migrate.current(self._engine)
        if found != REVISIONS[-1]:
            raise StoreUnavailable(
                f"database is at revision {found or 'none'}, this program needs {REVISIONS[-1]}"
            )

    def meta(self, key: str) -> Any:
        """A JSON value that the loop put, None when it never did."""
        c = schema.meta.c
        value = self._within(lambda db: db.scalar(select(c.value).where(c.key == key)))
        return None if value is None else json.loads(value)

    def lease(self) -> Row | None:
        """Which unicrond leads, None where one is alone."""
        return self._within(lease.read)

    def runs(
        self, *, live: bool = False, user: str = "", state: str = "", after: str = "",
        limit: int = 100,
    ) -> Page[Run]:  # fmt: skip
        """Newest first."""
        c = schema.runs.c
        wanted = [c.ended.is_(False)] * live + [c.user == user] * bool(user)
        wanted += [c.state == state] * bool(state)
        query = select(c.doc, c.run_id.label("key")).where(*wanted)
        return self._page(query, _Order(c.run_id, newest_first=True), after, limit, read_doc(Run))

    def run(self, run_id: int) -> Run | None:
        return self._one(Run, schema.runs, "run_id", run_id)

    def incidents(
        self, *, open_: bool = False, run_id: int | None = None, node: str = "", state: str = "",
        since: float = 0.0, after: str = "", limit: int = 100,
    ) -> Page[Incident]:  # fmt: skip
        """Newest first."""
        c = schema.incidents.c
        wanted = [c.ended.is_(False)] * open_ + [c.run_id == run_id] * (run_id is not None)
        wanted += [c.root_node == node] * bool(node) + [c.state == state] * bool(state)
        wanted += [c.opened_at >= since] * bool(since)
        query = select(c.doc, c.incident_id.label("key")).where(*wanted)
        order = _Order(c.incident_id, newest_first=True)
        return self._page(query, order, after, limit, read_doc(Incident))

    def incident(self, incident_id: int) -> Incident | None:
        return self._one(Incident, schema.incidents, "incident_id", incident_id)

    def review(self, incident_id: int) -> Review | None:
        return self._one(Review, schema.reviews, "incident_id", incident_id)

    def reviews(self) -> tuple[Review, ...]:
        """Those that rules are believed by, oldest first."""
        return self._within(newest_reviews)

    def acts(self, incident_id: int) -> tuple[Act, ...]:
        c = schema.actions.c
        query = select(c.intent, c.outcome).where(c.incident_id == incident_id)
        rows = self.rows(query.order_by(c.generation, c.ordinal))
        return tuple(
            Act(_loads(Action, row.intent), _loads(Outcome, row.outcome) if row.outcome else None)
            for row in rows
        )

    def allocations(
        self, *, current: bool = True, user: str = "", after: str = "", limit: int = 100
    ) -> Page[SeenAllocation]:
        """Newest first. `current`: only what Slurm listed in the last snapshot."""
        a, r = schema.allocations.c, schema.runs.c
        wanted = [a.gone_at.is_(None)] * current + [a.user == user] * bool(user)
        query = (
            select(a.doc, a.changed_at, a.gone_at, r.run_id, a.id.label("key"))
            .join(schema.runs, r.run_id == a.job_id, isouter=True)
            .where(*wanted)
        )
        order = _Order(a.id, newest_first=True)
        return self._page(query, order, after, limit, read_seen_allocation)

    def nodes(self, *, after: str = "", limit: int = 1000) -> Page[SeenNode]:
        """By name."""
        c = schema.nodes.c
        query = select(c.doc, c.changed_at, c.name.label("key"))
        return self._page(query, _Order(c.name), after, limit, read_seen_node)

    def node(self, name: str) -> Node | None:
        return self._one(Node, schema.nodes, "name", name)

    def decisions(
        self, *, run_id: int | None = None, incident_id: int | None = None, after: str = "",
        limit: int = 100,
    ) -> Page[Decision]:  # fmt: skip
        """Newest first, plans among them."""
        c = schema.decisions.c
        wanted = [c.run_id == run_id] * (run_id is not None)
        wanted += [c.incident_id == incident_id] * (incident_id is not None)
        query = select(c.doc, c.id.label("key")).where(*wanted)
        return self._page(query, _Order(c.id, newest_first=True), after, limit, read_doc(Decision))

    def audit(self, *, who: str = "", after: str = "", limit: int = 100) -> Page[Audited]:
        """Commands, newest first."""
        c = schema.audit.c
        query = select(c.doc, c.id.label("key")).where(*[c.who == who] * bool(who))
        return self._page(query, _Order(c.id, newest_first=True), after, limit, read_doc(Audited))

    def lines_after(self, number: int, limit: int) -> tuple[tuple[int, JournalEntry], ...]:
        """Of the journal, oldest first, each with its number."""
        c = schema.journal.c
        rows = self.rows(select(schema.journal).where(c.id > number).order_by(c.id).limit(limit))
        return tuple((row.id, _journal_entry(row)) for row in rows)

    def last_line(self) -> int:
        """Number of the newest line of the journal, 0 where there is none."""
        return self._within(lambda db: db.scalar(select(func.max(schema.journal.c.id)))) or 0

    def observations(self, run_id: int | None = None) -> tuple[Observation, ...]:
        """Of one run, or of all that are live."""
        o, r = schema.observations.c, schema.runs.c
        query = select(o.doc).order_by(o.run_id, o.workers)
        if run_id is not None:
            query = query.where(o.run_id == run_id)
        else:
            query = query.join(schema.runs, r.run_id == o.run_id).where(r.ended.is_(False))
        return tuple(_loads(Observation, row.doc) for row in self.rows(query))

    def learned(self, kind: str, subject: str) -> Any:
        """As JSON, None when it never was."""
        c = schema.knowledge.c
        rows = self.rows(select(c.doc).where(c.kind == kind, c.subject == subject))
        return json.loads(rows[0].doc) if rows else None

    def last_plan(self) -> Planned | None:
        c = schema.plans.c
        rows = self.rows(select(c.at, c.cause, c.doc).order_by(c.id.desc()).limit(1))
        return Planned(rows[0].at, rows[0].cause, rows[0].doc) if rows else None

    def plan_of(self, incident_id: int) -> Planned | None:
        """The first that was made for that incident, if it is still kept."""
        p, d = schema.plans.c, schema.decisions.c
        query = (
            select(p.at, p.cause, p.doc)
            .join(schema.decisions, d.at == p.at)
            .where(d.incident_id == incident_id)
            .order_by(p.id)
            .limit(1)
        )
        rows = self.rows(query)
        return Planned(rows[0].at, rows[0].cause, rows[0].doc) if rows else None

    def plans_since(self, at: float, but: Collection[str]) -> int:
        """How many were made, but for some causes."""
        c = schema.plans.c
        query = select(func.count()).where(c.at > at, c.cause.not_in(but))
        return self._within(lambda db: db.scalar(query)) or 0

    def faults(self, limit: int = 20_000) -> tuple[Incident, ...]:
        """The newest incidents that have a node as their root."""
        c = schema.incidents.c
        query = select(c.doc).where(c.root_node != "").order_by(c.incident_id.desc()).limit(limit)
        return tuple(_loads(Incident, row.doc) for row in self.rows(query))

    def heals(self, limit: int = 5_000) -> tuple[tuple[Incident, Decision], ...]:
        """The newest incidents that were resolved, each with the last decision on it."""
        d, i = schema.decisions.c, schema.incidents.c
        query = (
            select(i.doc.label("incident"), d.doc.label("decision"))
            .join(schema.incidents, i.incident_id == d.incident_id)
            .where(i.state == IncidentState.RESOLVED.value)
            .order_by(d.id.desc())
            .limit(limit)
        )
        last: dict[int, tuple[Incident, Decision]] = {}
        for row in self.rows(query):
            decision = _loads(Decision, row.decision)
            if decision.acts and decision.incident_id not in last:
                last[decision.incident_id] = _loads(Incident, row.incident), decision
        return tuple(last.values())

    def story_of_run(self, run_id: int, after: str = "", limit: int = 200) -> Page[StoryLine]:
        return self._story([schema.journal.c.run_id == run_id], after, limit)

    def story_of_incident(
        self, incident_id: int, after: str = "", limit: int = 200
    ) -> Page[StoryLine]:
        return self._story([schema.journal.c.incident_id == incident_id], after, limit)

    def story_of_node(self, node: str, after: str = "", limit: int = 200) -> Page[StoryLine]:
        return self._story([schema.journal.c.node == node], after, limit)

    def _story(self, wanted: Conditions, after: str, limit: int) -> Page[StoryLine]:
        """The last lines, in the order in which they happened; the next page is what was before."""
        c = schema.journal.c
        query = select(schema.journal, c.id.label("key")).where(*wanted)
        order = _Order(c.id, newest_first=True)
        page = self._page(query, order, after, limit, _journal_entry)
        return Page(self._with_decisions(tuple(reversed(page.items))), page.next)

    def _with_decisions(self, entries: Sequence[JournalEntry]) -> tuple[StoryLine, ...]:
        c = schema.decisions.c
        told = [entry for entry in entries if entry.kind in CHOICES]
        of_incidents = {entry.incident_id for entry in told if entry.incident_id}
        others = {entry.at for entry in told if not entry.incident_id}  # the planner's
        wanted = or_(
            c.incident_id.in_(of_incidents), (c.incident_id == NO_INCIDENT) & c.at.in_(others)
        )
        rows = self.rows(select(c.doc).where(wanted)) if told else []
        decisions = [_loads(Decision, row.doc) for row in rows]
        return tuple(StoryLine(entry, _behind(entry, decisions)) for entry in entries)

    def _page(
        self, query: Select[Any], order: _Order, after: str, limit: int, read: Callable[[Any], T]
    ) -> Page[T]:
        rows = self.rows(order.applied(query, after).limit(limit + 1))
        more = str(rows[limit - 1].key) if len(rows) > limit else None
        return Page(tuple(read(row) for row in rows[:limit]), more)

    def _one(self, cls: type[T], table: Table, key: str, value: object) -> T | None:
        rows = self.rows(select(table.c.doc).where(table.c[key] == value))
        return _loads(cls, rows[0].doc) if rows else None

    def rows(self, query: Select[Any]) -> Sequence[Fetched[Any]]:
        """Raises StoreUnavailable."""
        return self._within(lambda connection: connection.execute(query).all())

    def _within(self, work: Callable[[Connection], T]) -> T:
        with translated_errors(self._engine), self._engine.connect() as connection:
            return work(connection)


@dataclass(frozen=True, slots=True)
class _Order:
    column: Column[Any]
    newest_first: bool = False

    def applied(self, query: Select[Any], after: str) -> Select[Any]:
        if self.newest_first:
            query = query.order_by(self.column.desc())
            return query.where(self.column < _number(after)) if after else query
        query = query.order_by(self.column)
        return query.where(self.column > after) if after else query


def _number(after: str) -> int:
    if not after.isascii() or not after.isdigit() or len(after) > 18:
        raise BadInput("after: not a place in this list; copy it from `next` of the page before")
    return int(after)


def _loads(cls: type[T], doc: str) -> T:
    try:
        return loads(cls, doc)
    except CodecError as error:
        raise StoreUnavailable(f"database holds a value that cannot be read: {error}") from error


def read_doc(cls: type[T]) -> Callable[[Any], T]:
    return lambda row: _loads(cls, row.doc)


def read_seen_allocation(row: Any) -> SeenAllocation:
    managed = row.run_id is not None
    allocation = _loads(Allocation, row.doc)
    return SeenAllocation(allocation, managed, row.changed_at, row.gone_at, row.key)


def read_seen_node(row: Any) -> SeenNode:
    return SeenNode(_loads(Node, row.doc), row.changed_at)


def _journal_entry(row: Any) -> JournalEntry:
    return JournalEntry(
        row.at,
        row.kind,
        row.text,
        row.run_id,
        row.incident_id,
        row.node,
        row.generation,
        json.loads(row.data),
    )


def _behind(entry: JournalEntry, decisions: Iterable[Decision]) -> Decision | None:
    """A decision and a plan of one moment are told apart by their reasons."""
    if entry.kind not in CHOICES:
        return None
    told = (entry.incident_id or NO_INCIDENT, entry.at)
    there = [d for d in decisions if (d.incident_id, d.at) == told]
    return next((d for d in there if d.reason in entry.text), there[0] if there else None)
