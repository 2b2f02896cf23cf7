"""Bringing the tables up to date; nothing is migrated silently.

database           daemon starts             unicronctl db upgrade
empty              creates the tables        creates the tables
up to date         goes on                   goes on
older              refuses: db upgrade       migrates, in one transaction where the database can
newer              refuses: newer program    refuses
somebody else's    refuses                   refuses
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text

from db.engine import shown, translated_errors
from db.schema import REVISIONS, metadata
from unicrond.errors import BadInput

HEAD = REVISIONS[-1]
_CREATE_POSTGRESQL = "CREATE DATABASE unicron TEMPLATE template0 ENCODING 'UTF8'"
_CREATE_MARIADB = "CREATE DATABASE unicron CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"


def ensure_ready(engine: Engine) -> None:
    """At the daemon's start: creates the tables in an empty database, refuses an older one too."""
    with translated_errors(engine), engine.begin() as connection:
        found = _checked_revision(connection, engine)
        if found == "":
            _run("upgrade", connection, HEAD)
        elif found != HEAD:
            raise BadInput(
                f"database {shown(engine)} is at revision {found} and this program needs {HEAD}: "
                "run `unicronctl db upgrade`"
            )


def upgrade(engine: Engine) -> tuple[str, str]:
    """Brings the tables to the newest revision; returns the one before ("": empty) and after."""
    with translated_errors(engine), engine.begin() as connection:
        found = _checked_revision(connection, engine)
        if found != HEAD:
            _run("upgrade", connection, HEAD)
    return found, HEAD


def downgrade(engine: Engine, revision: str) -> None:
    """Back to an older revision, or to "base", which drops every table of ours."""
    with translated_errors(engine), engine.begin() as connection:
        _checked_revision(connection, engine)
        _run("downgrade", connection, revision)


def current(engine: Engine) -> str:
    """The revision that the tables are at, "" for an empty database."""
    with translated_errors(engine), engine.connect() as connection:
        return _revision(connection)


def _checked_revision(connection: Connection, engine: Engine) -> str:
    _check_letters(connection, engine)
    found = _revision(connection)
    if found == "" and _others_tables(connection):
        raise BadInput(
            f"database {shown(engine)} holds tables that are not unicrond's: "
            "give unicrond a database of its own in database_url"
        )
    if found not in ("", *REVISIONS):
        raise BadInput(
            f"database {shown(engine)} is at revision {found}, made by a newer unicrond than this "
            f"one, which knows {HEAD}: install the newer program again, or restore a backup"
        )
    return found


def _others_tables(connection: Connection) -> set[str]:
    """Ours without a revision are left of a first start that was interrupted, where the database
    does not take them back: Alembic makes its own table first."""
    found = set(inspect(connection).get_table_names())
    return found - {"alembic_version", *metadata.tables} if "alembic_version" in found else found


def _check_letters(connection: Connection, engine: Engine) -> None:
    """It has to take all letters, and to tell n1 from N1."""
    if engine.dialect.name == "sqlite":
        return
    if engine.dialect.name == "postgresql":
        found = str(connection.scalar(text("SHOW server_encoding")))
        good, create = found == "UTF8", _CREATE_POSTGRESQL
    else:
        found = str(connection.scalar(text("SELECT @@collation_database")))
        good, create = found.startswith("utf8mb4_") and found.endswith("_bin"), _CREATE_MARIADB
    if not good:
        raise BadInput(
            f"database {shown(engine)} keeps its text as {found}, which loses letters or their "
            f"case: make it by `{create}`"
        )


def _revision(connection: Connection) -> str:
    if not inspect(connection).has_table("alembic_version"):
        return ""
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar() or ""


def _run(direction: str, connection: Connection, revision: str) -> None:
    from alembic import command  # only here: it is slow to import and rarely needed
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    getattr(command, direction)(config, revision)
