"""Reading what changed since the last look, for those who keep a picture of the present.

Runs and incidents carry the number of the save that wrote them; nodes and allocations the time of
the snapshot that changed them. Rows are decoded only when somebody asks for the value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Row, Select, Table, and_, func, select

from db import schema
from db.queries import (
    Queries,
    SeenAllocation,
    SeenNode,
    read_doc,
    read_seen_allocation,
    read_seen_node,
)
from unicrond.model.incident import Incident
from unicrond.model.run import Run

NEWEST = 2_000  # of the runs, and of the incidents, that are over

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stored(Generic[T]):
    """A row. `mark` differs once what it says differs; `since`: what to ask for next."""

    key: Any
    mark: object
    since: float
    gone: bool
    read: Callable[[], T]


class Newer:
    """Every call raises StoreUnavailable. `since` -inf: everything that is of the present."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    def count_nodes(self) -> int:
        return int(self._queries.rows(select(func.count()).select_from(schema.nodes))[0][0])

    def nodes_since(self, since: float) -> list[Stored[SeenNode]]:
        c = schema.nodes.c
        query = select(c.name, c.changed_at, c.doc).where(c.changed_at > _low(since))
        return [
            Stored(row.name, row.changed_at, row.changed_at, False, _late(read_seen_node, row))
            for row in self._queries.rows(query)
        ]

    def allocations_since(self, since: float) -> list[Stored[SeenAllocation]]:
        a, r = schema.allocations.c, schema.runs.c
        query = (
            select(a.id.label("key"), a.doc, a.changed_at, a.gone_at, r.run_id)
            .join(schema.runs, r.run_id == a.job_id, isouter=True)
            .where(and_(a.gone_at.is_(None), a.changed_at > _low(since)))
        )
        rows = list(self._queries.rows(query))
        if since > float("-inf"):
            gone = select(a.id.label("key"), a.doc, a.changed_at, a.gone_at, r.run_id).join(
                schema.runs, r.run_id == a.job_id, isouter=True
            )
            rows += self._queries.rows(gone.where(a.gone_at > since))
        return [_stored_allocation(row) for row in rows]

    def runs_since(self, since: float) -> list[Stored[Run]]:
        return self._saved(schema.runs, "run_id", Run, since)

    def incidents_since(self, since: float) -> list[Stored[Incident]]:
        return self._saved(schema.incidents, "incident_id", Incident, since)

    def _saved(self, table: Table, key: str, cls: type[T], since: float) -> list[Stored[T]]:
        c = table.c
        query = select(c[key].label("key"), c.saved, c.doc)
        rows: dict[int, Row[Any]] = {}
        for part in _parts(query, table, key, since):
            rows |= {row.key: row for row in self._queries.rows(part)}
        read = read_doc(cls)
        return [
            Stored(row.key, row.saved, row.saved or 0, False, _late(read, row))
            for row in rows.values()
        ]


def _parts(query: Select[Any], table: Table, key: str, since: float) -> tuple[Select[Any], ...]:
    c = table.c
    if since > float("-inf"):
        return (query.where(c.saved > since),)
    newest = query.order_by(c[key].desc()).limit(NEWEST)
    return query.where(c.ended.is_(False)), newest


def _stored_allocation(row: Any) -> Stored[SeenAllocation]:
    gone = row.gone_at is not None
    mark = (row.changed_at, row.run_id is not None)
    return Stored(
        row.key, mark, row.gone_at if gone else row.changed_at, gone,
        _late(read_seen_allocation, row),
    )  # fmt: skip


def _late(read: Callable[[Any], T], row: Any) -> Callable[[], T]:
    return lambda: read(row)


def _low(since: float) -> float:
    """Databases know no infinity."""
    return max(since, -1e18)
