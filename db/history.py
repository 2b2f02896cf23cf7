"""What is over and old is forgotten, a few rows at a time, by the one that writes.

An incident goes with its decisions, its actions and its lines of the journal; then the run, once
its incidents are gone, with what is left of its story; jobs that Slurm no longer lists; lines that
are of no run; which nodes jobs held, commands, and reviews by which no rule is judged any more.
Nothing goes of a run that lives, an incident that is open, an action that has not ended.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from sqlalchemy import Column, ColumnElement, Connection, delete, exists, insert, select

from db.knowledge import THROUGHPUT
from db.schema import (
    actions,
    allocations,
    audit,
    decisions,
    incidents,
    journal,
    knowledge,
    meta,
    observations,
    phases,
    reviews,
    runs,
    spells,
)
from detectors.trust import MOST_REVIEWS

ROWS_AT_ONCE = 200
_HEADS_AT_ONCE = 20  # incidents, or runs, whose rows are looked for together
LAST_KEY = "last_forgotten"
DAY_SECONDS = 86_400.0


class Forgetting:
    """When to forget: a batch at a time while there is something, then an hour of rest. The first
    one waits, since a machine that has just started may not know the date yet."""

    FIRST_SECONDS, REST_SECONDS = 600.0, 3600.0

    def __init__(self, forget: Callable[[float], int], days: int, started: float) -> None:
        self._forget = forget
        self._days = days  # 0: nothing is ever forgotten
        self._due = started + self.FIRST_SECONDS

    def go_on(self, monotonic: float, now: float) -> None:
        """To be called every few seconds; makes one batch at most."""
        if self._days == 0 or monotonic < self._due:
            return
        self._due = monotonic + self.REST_SECONDS  # also if it fails
        if self._forget(now - self._days * DAY_SECONDS):
            self._due = monotonic


def forget(connection: Connection, before: float, rows: int = ROWS_AT_ONCE) -> int:
    """Deletes about so many rows of what ended before that time; 0: none is left."""
    gone = 0
    for part in (_incidents, _runs, _allocations, _of_nothing, _records):
        gone += part(connection, before, rows - gone)
        if gone >= rows:
            break
    return gone


def last_forgotten(connection: Connection) -> tuple[int, int]:
    """The highest incident and the highest ordinal: neither number is given again."""
    text = connection.scalar(select(meta.c.value).where(meta.c.key == LAST_KEY))
    incident, ordinal = json.loads(text) if text else (0, -1)
    return incident, ordinal


def _incidents(connection: Connection, before: float, rows: int) -> int:
    c = incidents.c
    unfinished = exists().where(
        actions.c.incident_id == c.incident_id, actions.c.outcome_state.is_(None)
    )
    old = select(c.incident_id).where(c.ended_at < before, ~_lives(c.run_id), ~unfinished)
    heads = connection.scalars(old.order_by(c.ended_at).limit(_HEADS_AT_ONCE)).all()
    if not heads:
        return 0
    gone = _delete(connection, journal.c.id, journal.c.incident_id.in_(heads), rows)
    gone += _delete(connection, decisions.c.id, decisions.c.incident_id.in_(heads), rows - gone)
    gone += _delete_actions(connection, heads, rows - gone)
    return gone + _delete(connection, c.incident_id, c.incident_id.in_(heads), rows - gone)


def _delete_actions(connection: Connection, heads: Sequence[int], rows: int) -> int:
    c = actions.c
    mine = c.incident_id.in_(heads)
    ordinals = connection.scalars(select(c.ordinal).where(mine).limit(max(0, rows))).all()
    if ordinals:
        connection.execute(delete(actions).where(mine, c.ordinal.in_(ordinals)))
    known = last_forgotten(connection)
    last = max(known[0], *heads), max((known[1], *ordinals))
    if last != known:
        row = {"key": LAST_KEY, "value": json.dumps(last)}
        connection.execute(delete(meta).where(meta.c.key == LAST_KEY))
        connection.execute(insert(meta).values(row))
    return len(ordinals)


def _runs(connection: Connection, before: float, rows: int) -> int:
    c = runs.c
    told = exists().where(incidents.c.run_id == c.run_id)
    old = select(c.run_id).where(c.ended_at < before, ~told).order_by(c.ended_at)
    heads = connection.scalars(old.limit(_HEADS_AT_ONCE)).all()
    if not heads:
        return 0
    learned, subjects = knowledge.c, [str(run_id) for run_id in heads]
    mine = (learned.kind == THROUGHPUT) & learned.subject.in_(subjects)
    connection.execute(delete(knowledge).where(mine))
    for table in (observations, phases):
        connection.execute(delete(table).where(table.c.run_id.in_(heads)))
    gone = _delete(connection, journal.c.id, journal.c.run_id.in_(heads), rows)
    return gone + _delete(connection, c.run_id, c.run_id.in_(heads), rows - gone)


def _allocations(connection: Connection, before: float, rows: int) -> int:
    c = allocations.c
    return _delete(connection, c.id, (c.gone_at < before) & ~_lives(c.job_id), rows)


def _of_nothing(connection: Connection, before: float, rows: int) -> int:
    """Lines of no run and no incident, and what the planner proposed; numbers rise with time."""
    lines, reasons = journal.c, decisions.c
    gone = 0
    for c, mine in (
        (lines, lines.run_id.is_(None) & lines.incident_id.is_(None)),
        (reasons, (reasons.incident_id == 0) & ~_lives(reasons.run_id)),
    ):
        oldest = select(c.id, c.at).where(mine).order_by(c.id).limit(max(0, rows - gone))
        old = [row.id for row in connection.execute(oldest) if row.at < before]
        gone += _delete(connection, c.id, c.id.in_(old), len(old))
    return gone


def _records(connection: Connection, before: float, rows: int) -> int:
    gone = _delete(
        connection, spells.c.id, (spells.c.ended < before) & ~_lives(spells.c.job_id), rows
    )
    gone += _delete(connection, audit.c.id, audit.c.at < before, rows - gone)
    gone += _reviews(connection, rows - gone)
    of_run = exists().where(runs.c.run_id == phases.c.run_id)  # those go with it; a companion's not
    return gone + _delete(connection, phases.c.id, (phases.c.began < before) & ~of_run, rows - gone)


def _reviews(connection: Connection, rows: int) -> int:
    """Of incidents that are forgotten, but the newest: by those rules are believed."""
    c = reviews.c
    newest = select(c.incident_id).order_by(c.incident_id.desc()).offset(MOST_REVIEWS - 1).limit(1)
    oldest_believed = connection.scalar(newest) or 0
    told = exists().where(incidents.c.incident_id == c.incident_id)
    return _delete(connection, c.incident_id, (c.incident_id < oldest_believed) & ~told, rows)


def _lives(run_id: ColumnElement[int]) -> ColumnElement[bool]:
    return exists().where(runs.c.run_id == run_id, runs.c.ended.is_(False))


def _delete(
    connection: Connection, key: Column[int], wanted: ColumnElement[bool], rows: int
) -> int:
    if rows <= 0:
        return 0
    found = connection.scalars(select(key).where(wanted).limit(rows)).all()
    if found:
        connection.execute(delete(key.table).where(key.in_(found)))
    return len(found)
