"""The row that one of several unicronds holds; unicrond/core/leader.py says who may take it.

Every statement here is one transaction. A save of the leader reads the row as its last statement
and keeps it from being taken until it is committed: so a save is whole before a successor loads
what there is, or it fails. The database's clock tells people how old a lease is, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Double,
    Engine,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from db import schema
from db.engine import lease_engine, translated_errors
from unicrond.core.leader import NOBODY, Row
from unicrond.errors import LeaseLost

T = TypeVar("T")
THE_ROW = 1
_NOW = {
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) AS double precision)",
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
}
_NOW_MARIADB = "CAST(unix_timestamp(sysdate(6)) AS double)"


class Leases(Protocol):
    """Each raises StoreUnavailable; what was asked may have been done all the same."""

    def read(self) -> Row | None:
        """None: nobody ever led."""

    def take(self, seen: Row | None, wanted: Row) -> bool:
        """False: it is no longer as it was seen."""

    def renew(self, mine: Row) -> bool:
        """False: it is another's."""

    def release(self, mine: Row) -> None:
        """Whoever waits need not wait longer."""


def open_leases(url: str, lease_seconds: float) -> SqlLeases:
    """Raises BadInput for SQLite, which two hosts cannot share."""
    return SqlLeases(lease_engine(url, lease_seconds))


class SqlLeases:
    """For any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def close(self) -> None:
        self._engine.dispose()

    def read(self) -> Row | None:
        return self._within(read)

    def take(self, seen: Row | None, wanted: Row) -> bool:
        with translated_errors(self._engine):
            try:
                with self._engine.begin() as connection:
                    return _take(connection, seen, wanted)
            except IntegrityError:  # two found none
                return False

    def renew(self, mine: Row) -> bool:
        c = schema.lease.c

        def write(connection: Connection) -> bool:
            values = {"renewals": c.renewals + 1, "renewed_at": _now(connection)}
            return _update(connection, mine, **values)

        return self._within(write)

    def release(self, mine: Row) -> None:
        self._within(lambda connection: _update(connection, mine, holder=NOBODY))

    def _within(self, work: Callable[[Connection], T]) -> T:
        with translated_errors(self._engine), self._engine.begin() as connection:
            return work(connection)


def read(connection: Connection) -> Row | None:
    c = schema.lease.c
    age = _now(connection) - c.renewed_at
    query = select(c.term, c.holder, c.host, c.wait_seconds, c.renewals, age)
    found = connection.execute(query).first()
    return None if found is None else Row(*found)


def check_held(connection: Connection, mine: Row) -> None:
    """Within a transaction that writes for the leader, at its end. Raises LeaseLost."""
    c = schema.lease.c
    query = select(c.id).where(c.term == mine.term, c.holder == mine.holder)
    if connection.scalar(query.with_for_update(read=True)) is None:
        raise LeaseLost(f"another unicrond took over from term {mine.term}: nothing is saved")


def _take(connection: Connection, seen: Row | None, wanted: Row) -> bool:
    now = _now(connection)
    values = {
        "term": wanted.term, "holder": wanted.holder, "host": wanted.host, "renewals": 0,
        "wait_seconds": wanted.wait_seconds, "renewed_at": now,
    }  # fmt: skip
    if seen is None:
        connection.execute(insert(schema.lease).values(id=THE_ROW, **values))
        return True
    return _update(connection, seen, schema.lease.c.renewals == seen.renewals, **values)


def _update(
    connection: Connection, of: Row, *conditions: ColumnElement[bool], **values: object
) -> bool:
    c = schema.lease.c
    same = (c.term == of.term, c.holder == of.holder, *conditions)
    return bool(connection.execute(update(schema.lease).where(*same).values(values)).rowcount)


def _now(connection: Connection) -> ColumnElement[float]:
    return literal_column(_NOW.get(connection.dialect.name, _NOW_MARIADB), Double)
