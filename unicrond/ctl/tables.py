"""What `unicronctl db` does with the database itself. Slow to import, so imported when used."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path

from sqlalchemy import Engine

from db import backup as backups
from db import migrate
from db.engine import reading_engine, writing_engine
from db.engine import shown as shown_engine
from db.history import DAY_SECONDS
from db.schema import REVISIONS
from db.store import open_store

NEEDED = REVISIONS[-1]


def found(url: str) -> str:
    """The revision that it is at, "" where it is empty."""
    engine = reading_engine(url)
    try:
        return migrate.current(engine)
    finally:
        engine.dispose()


def shown(url: str) -> str:
    return shown_engine(writing_engine(url))


def upgrade(url: str) -> tuple[str, str]:
    engine = writing_engine(url, upgrade=True)
    before, after = migrate.upgrade(engine)
    engine.dispose()
    _give_to_owner_of_folder(engine)
    return before, after


def backup(url: str, file: Path) -> int:
    return backups.backup(url, file, time.time())


def restore(url: str, file: Path) -> int:
    rows = backups.restore(url, file)
    _give_to_owner_of_folder(writing_engine(url))
    return rows


def prune(url: str, days: int) -> int:
    rows = 0
    with closing(open_store(url)) as store:
        while gone := store.forget(time.time() - days * DAY_SECONDS):
            rows += gone
    engine = writing_engine(url)
    if engine.dialect.name == "sqlite":
        with closing(engine.raw_connection()) as connection:  # no transaction may be around it
            connection.cursor().execute("VACUUM")
    engine.dispose()
    return rows


def _give_to_owner_of_folder(engine: Engine) -> None:
    """Made by root, the file would be closed to unicrond."""
    if engine.dialect.name != "sqlite" or os.geteuid() != 0:
        return
    path = Path(engine.url.database or "")
    owner = path.parent.stat()
    os.chown(path, owner.st_uid, owner.st_gid)
