"""Reading what the ledger is made of: spells, phases and incidents that touch a stretch of time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import or_, select

from db import schema
from db.queries import Queries, read_doc
from db.spells import Held, Phase, readable_phases
from unicrond.errors import BadInput
from unicrond.model.incident import Incident

MOST_SPELLS = 200_000
IDS_AT_ONCE = 500


def spells_within(queries: Queries, began: float, ended: float) -> tuple[Held, ...]:
    """Raises StoreUnavailable; BadInput where there are too many."""
    c = schema.spells.c
    query = (
        select(c.doc, c.ended)
        .where(c.began < ended, or_(c.ended.is_(None), c.ended > began))
        .order_by(c.id)
        .limit(MOST_SPELLS + 1)
    )
    rows, read = queries.rows(query), read_doc(Held)
    if len(rows) > MOST_SPELLS:
        raise BadInput(f"more than {MOST_SPELLS} spells of jobs: ask for a shorter time")
    return tuple(replace(read(row), ended=row.ended) for row in rows)


def phases_of(queries: Queries, run_ids: Sequence[int], ended: float) -> dict[int, list[Phase]]:
    c = schema.phases.c
    found: dict[int, list[Phase]] = defaultdict(list)
    for ids in _chunks(run_ids):
        query = select(c.doc).where(c.run_id.in_(ids), c.began < ended).order_by(c.id)
        for phase in readable_phases([row.doc for row in queries.rows(query)]):
            found[phase.run_id].append(phase)
    return found


def incidents_of(
    queries: Queries, run_ids: Sequence[int], began: float, ended: float
) -> dict[int, list[Incident]]:
    c = schema.incidents.c
    found: dict[int, list[Incident]] = defaultdict(list)
    read = read_doc(Incident)
    for ids in _chunks(run_ids):
        over = or_(c.ended_at.is_(None), c.ended_at > began)
        query = select(c.doc).where(c.run_id.in_(ids), c.opened_at < ended, over)
        for row in queries.rows(query.order_by(c.incident_id)):
            incident = read(row)
            found[incident.run_id or 0].append(incident)
    return found


def _chunks(ids: Sequence[int]) -> list[Sequence[int]]:
    return [ids[at : at + IDS_AT_ONCE] for at in range(0, len(ids), IDS_AT_ONCE)]
