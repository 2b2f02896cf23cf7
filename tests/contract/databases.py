"""The databases that contract tests run over, each emptied first: SQLite, and those whose URLs are
in UNICRON_TEST_DATABASE_URLS, separated by blanks (`scripts/test databases` has such)."""

from __future__ import annotations

import os
from pathlib import Path

from db import migrate, schema
from db.engine import writing_engine

SERVERS = os.environ.get("UNICRON_TEST_DATABASE_URLS", "").split()
DATABASES = ["sqlite", *SERVERS]


def emptied(database: str, folder: Path) -> str:
    """The URL of an empty database of this kind."""
    if database == "sqlite":
        return f"sqlite:///{folder}/unicron.db"
    engine = writing_engine(database)
    if migrate.current(engine) == schema.REVISIONS[-1]:  # much quicker than making them anew
        with engine.begin() as connection:
            for table in schema.metadata.tables.values():
                connection.execute(table.delete())
    else:
        migrate.downgrade(engine, "base")
    engine.dispose()
    return database
