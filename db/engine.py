"""Connections, and what each database needs of them. Translates the drivers' errors into ours.

SQLite: WAL, so that readers never hold up the loop, and synchronous=FULL, so that an intent which
was saved survives a power loss and not only a SIGKILL: the action that follows must not be unknown
to the daemon that comes after. It costs one fsync a save, of which there are a few a second.

A server: each wait has a limit, since the loop waits with it: for a connection, a statement, a
lock, and for a host that is gone. An upgrade's statements may take longer. A transaction whose
process was stopped, or whose host is gone, is given up by the server, so that its locks go too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from unicrond.errors import BadInput, StoreUnavailable

BUSY_TIMEOUT_SECONDS = 2.0
CONNECT_TIMEOUT_SECONDS = 3
STATEMENT_TIMEOUT_SECONDS = 5.0
UPGRADE_TIMEOUT_SECONDS = 3600.0
DIALECTS = ("sqlite", "postgresql", "mysql", "mariadb")
_DRIVERS = {"postgresql": "psycopg", "mysql": "pymysql", "mariadb": "pymysql"}


def writing_engine(url: str, *, upgrade: bool = False) -> Engine:
    """For the loop and for upgrades. Connects when first used."""
    parsed = _parse(url)
    if parsed.get_backend_name() != "sqlite":
        return _of_server(parsed, UPGRADE_TIMEOUT_SECONDS if upgrade else STATEMENT_TIMEOUT_SECONDS)
    engine = _create(parsed, connect_args={"timeout": BUSY_TIMEOUT_SECONDS})
    event.listen(engine, "connect", _prepare_writer)
    event.listen(engine, "begin", _begin_writing)
    return engine


def lease_engine(url: str, lease_seconds: float) -> Engine:
    """For the lease: an answer that comes late is worth nothing."""
    parsed = _parse(url)
    if parsed.get_backend_name() == "sqlite":
        raise BadInput(
            "leader_lease_seconds: SQLite is a file of one host, which a second unicrond cannot "
            "share: write a PostgreSQL or MariaDB server into database_url, or "
            "leader_lease_seconds = 0 for one unicrond alone"
        )
    return _of_server(parsed, max(1.0, lease_seconds / 4))


def reading_engine(url: str) -> Engine:
    """For the API: cannot write, and never creates a database."""
    parsed = _parse(url)
    if parsed.get_backend_name() != "sqlite":
        return _of_server(parsed, STATEMENT_TIMEOUT_SECONDS, read_only=True)
    parsed = parsed.set(database=f"file:{parsed.database}").update_query_dict(
        {"mode": "ro", "uri": "true"}
    )
    return _create(parsed, connect_args={"timeout": BUSY_TIMEOUT_SECONDS})


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise BadInput(
            "database_url: this is not a URL; write for example "
            "sqlite:////var/lib/unicron/unicron.db or postgresql+psycopg://user@host/unicron"
        ) from None
    if parsed.get_backend_name() not in DIALECTS:
        raise BadInput(
            f"database_url: {parsed.drivername} is not supported; use one of {', '.join(DIALECTS)}"
        )
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise BadInput(
            "database_url: a database in memory would forget everything; name a file, for example "
            "sqlite:////var/lib/unicron/unicron.db"
        )
    return parsed


def _of_server(url: URL, statement_seconds: float, *, read_only: bool = False) -> Engine:
    backend = url.get_backend_name()
    if "+" not in url.drivername:
        url = url.set(drivername=f"{backend}+{_DRIVERS[backend]}")
    arguments = _of_postgresql if backend == "postgresql" else _of_mariadb
    ours = arguments(statement_seconds, read_only)
    # what the URL says itself is meant
    own = {name: value for name, value in ours.items() if name not in url.query}
    engine = _create(url, connect_args=own, pool_pre_ping=True)
    if engine.driver == "psycopg":
        from db import postgresql  # needs the driver

        postgresql.limit(engine, statement_seconds + 1)
    return engine


def _of_postgresql(statement_seconds: float, read_only: bool) -> dict[str, object]:
    milliseconds = round(statement_seconds * 1000)
    return {
        "client_encoding": "utf8",
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "options": f"-c statement_timeout={milliseconds} -c lock_timeout={milliseconds} "
        f"-c idle_in_transaction_session_timeout={milliseconds} "
        f"-c default_transaction_read_only={read_only}",
        "tcp_user_timeout": round(STATEMENT_TIMEOUT_SECONDS * 1000),
        "keepalives_idle": 2,
        "keepalives_interval": 1,
        "keepalives_count": 3,
    }


def _of_mariadb(statement_seconds: float, read_only: bool) -> dict[str, object]:
    """A lock is waited for a little less long than an answer: else the connection is given up.
    What stands in /*M! */ is for MariaDB alone: MySQL has no such limit."""
    seconds = math.ceil(statement_seconds)
    idle = f"/*M! , idle_transaction_timeout={seconds} */"
    lock = f"SET SESSION innodb_lock_wait_timeout={seconds} {idle}"
    return {
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "read_timeout": statement_seconds + 1,
        "write_timeout": statement_seconds + 1,
        "init_command": "SET SESSION TRANSACTION READ ONLY" if read_only else lock,
    }


def _create(url: URL, **options: Any) -> Engine:
    try:
        return create_engine(url, **options)
    except (ModuleNotFoundError, NoSuchModuleError) as error:
        raise BadInput(
            f"database_url: the driver for {url.drivername} is not installed ({error}); install "
            "unicrond[postgresql] or unicrond[mariadb]"
        ) from error


def _prepare_writer(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver's own BEGIN comes too late, after the reads
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")


def _begin_writing(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextmanager
def translated_errors(engine: Engine) -> Iterator[None]:
    """Whatever the driver raises leaves as StoreUnavailable, with the database's own words."""
    try:
        yield
    except DBAPIError as error:
        raise StoreUnavailable(f"database {shown(engine)}: {error.orig}") from error
    except SQLAlchemyError as error:
        raise StoreUnavailable(f"database {shown(engine)}: {error}") from error


def shown(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=True)


class FileGuard:
    """Notices that an SQLite file was removed or replaced: SQLite itself would write on into it."""

    def __init__(self, engine: Engine) -> None:
        sqlite = engine.dialect.name == "sqlite"
        self._path = Path(engine.url.database or "") if sqlite else None
        self._identity = self._look()

    def _look(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def check(self) -> None:
        if self._look() != self._identity:
            raise StoreUnavailable(
                f"database {self._path}: the file was removed or replaced; put it back, or restart"
            )
