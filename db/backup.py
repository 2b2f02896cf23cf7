"""A backup: every table in one file, the same for each kind of database, so it may change kinds.

    gzip of JSON lines   {"format": 1, "revision": "0005", "at": 1.7e9}
                         {"table": "runs", "rows": [[...], ...]}   columns in the schema's order
                         {"rows": 4711}                            without it the file is not whole

Read in one transaction while unicrond works; restored in one, into an empty database only.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, func, insert, select, text

from db import migrate
from db.engine import reading_engine, translated_errors, writing_engine
from db.schema import REVISIONS, metadata
from unicrond.errors import BadInput, StoreUnavailable

FORMAT = 1
ROWS_AT_ONCE = 1000


def backup(url: str, file: Path, at: float) -> int:
    """How many rows it holds. The file is there once it is whole, for its owner alone."""
    engine = reading_engine(url)
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with translated_errors(engine), engine.connect() as connection:
            _one_moment(connection)
            found = migrate.current(engine)
            if found != REVISIONS[-1]:
                raise StoreUnavailable(f"tables are at revision {found or 'none'}: upgrade first")
            rows = _write(connection, partial, {"format": FORMAT, "revision": found, "at": at})
        partial.replace(file)
    except OSError as error:
        raise BadInput(f"FILE {file}: {error.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)
        engine.dispose()
    return rows


def restore(url: str, file: Path) -> int:
    """How many rows it was. Makes the tables where there are none."""
    engine = writing_engine(url, upgrade=True)
    try:
        head = next(_lines(file), {})
        if head.get("format") != FORMAT or head.get("revision") != REVISIONS[-1]:
            raise BadInput(
                f"FILE {file}: of revision {head.get('revision')}, this program needs "
                f"{REVISIONS[-1]}: restore it with the unicronctl that made it, then upgrade"
            )
        migrate.upgrade(engine)
        with translated_errors(engine), engine.begin() as connection:
            _refuse_what_is_there(connection)
            return _read(connection, file)
    finally:
        engine.dispose()


def _one_moment(connection: Connection) -> None:
    """All tables as they are now, though others write meanwhile."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN")
    elif connection.dialect.name == "postgresql":
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))


def _write(connection: Connection, partial: Path, head: dict[str, object]) -> int:
    rows = 0
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as raw:
        with gzip.open(raw, "wt", encoding="utf-8") as out:
            out.write(json.dumps(head) + "\n")
            for table in metadata.sorted_tables:
                for part in _parts(connection, table):
                    out.write(json.dumps({"table": table.name, "rows": part}) + "\n")
                    rows += len(part)
            out.write(json.dumps({"rows": rows}) + "\n")
        os.fsync(raw.fileno())
    return rows


def _parts(connection: Connection, table: Table) -> Iterator[list[list[Any]]]:
    found = connection.execution_options(yield_per=ROWS_AT_ONCE).execute(select(table))
    for part in found.partitions():
        yield [list(row) for row in part]


def _refuse_what_is_there(connection: Connection) -> None:
    for table in metadata.sorted_tables:
        if connection.scalar(select(func.count()).select_from(table)):
            raise BadInput(
                f"database: there are {table.name} in it already; restore into an empty one, or "
                "move this one away"
            )


def _read(connection: Connection, file: Path) -> int:
    rows, told = 0, None
    for line in _lines(file):
        if "table" in line:
            table = _table(file, line)
            names = [column.name for column in table.columns]
            values = [dict(zip(names, row, strict=True)) for row in line["rows"]]
            connection.execute(insert(table), values)
            rows += len(values)
        elif "rows" in line:
            told = line["rows"]
    if told != rows:
        raise BadInput(f"FILE {file}: is not whole: {rows} rows of {told or 'unknown many'}")
    if connection.dialect.name == "postgresql":
        _count_on(connection)
    return rows


def _table(file: Path, line: dict[str, Any]) -> Table:
    table = metadata.tables.get(line["table"])
    if table is None:
        raise BadInput(f"FILE {file}: there is no table {line['table']} of ours")
    return table


def _count_on(connection: Connection) -> None:
    """PostgreSQL's counters do not see numbers that are given to it."""
    for table in metadata.sorted_tables:
        column = table.autoincrement_column
        if column is not None:
            name = f"pg_get_serial_sequence('{table.name}', '{column.name}')"
            last = f"(SELECT max({column.name}) FROM {table.name})"
            connection.execute(text(f"SELECT setval({name}, coalesce({last}, 1), true)"))


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield dict(json.loads(line))
    except (OSError, EOFError, ValueError, TypeError, zlib.error) as error:
        words = getattr(error, "strerror", None) or "is no backup of unicronctl, or is damaged"
        raise BadInput(f"FILE {file}: {words}") from None
