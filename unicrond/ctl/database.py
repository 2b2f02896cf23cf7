"""`unicronctl db`: the tables. Works on the database itself, also while unicrond is down."""

from __future__ import annotations

import errno
import os
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy import Engine

from db import backup as backups
from db import migrate
from db.engine import reading_engine, shown, writing_engine
from db.history import DAY_SECONDS
from db.schema import REVISIONS
from db.store import open_store
from unicrond.ctl.client import refusal
from unicrond.ctl.show import DryRun
from unicrond.errors import Refused

GONE = (os.strerror(errno.ENOENT), os.strerror(errno.ECONNREFUSED))

app = typer.Typer(help="The tables of unicrond's database.", no_args_is_help=True)


@app.command()
def upgrade(context: typer.Context, dry_run: DryRun = False) -> None:
    """Bring the tables to the revision that this program needs; make them where there are none."""
    if dry_run:
        print(f"would go from {_found(context) or 'an empty database'} to {REVISIONS[-1]}")
        return
    engine = writing_engine(context.obj.database_url, upgrade=True)
    before, after = migrate.upgrade(engine)
    engine.dispose()
    _give_to_owner_of_folder(engine)
    print(f"revision {after}" + ("" if before == after else f", was {before or 'empty'}"))


@app.command()
def current(context: typer.Context) -> None:
    """Show the revision of the tables, and the one that this program needs."""
    found = _found(context)
    print(f"revision {found or 'none'}, this program needs {REVISIONS[-1]}")
    raise typer.Exit(0 if found == REVISIONS[-1] else 1)


@app.command()
def backup(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Written anew, for you alone.")],
) -> None:
    """Write every table into a file, as they are at this moment. unicrond may work on meanwhile."""
    rows = backups.backup(context.obj.database_url, file, time.time())
    print(f"{rows} rows in {file}")


@app.command()
def restore(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Of `db backup`.")],
    dry_run: DryRun = False,
) -> None:
    """Bring a backup back, into an empty database of any kind. unicrond must be stopped."""
    _stopped(context)
    if dry_run:
        print(f"would restore {file} into {shown(writing_engine(context.obj.database_url))}")
        return
    rows = backups.restore(context.obj.database_url, file)
    _give_to_owner_of_folder(writing_engine(context.obj.database_url))
    print(f"{rows} rows from {file}")


@app.command()
def prune(
    context: typer.Context,
    days: Annotated[int, typer.Option(min=1, help="What ended longer ago is forgotten.")],
    dry_run: DryRun = False,
) -> None:
    """Forget now what is over and old, and give its room back. unicrond must be stopped."""
    _stopped(context)
    if dry_run:
        print(f"would forget what ended more than {days} days ago")
        return
    rows = 0
    with closing(open_store(context.obj.database_url)) as store:
        while gone := store.forget(time.time() - days * DAY_SECONDS):
            rows += gone
    engine = writing_engine(context.obj.database_url)
    if engine.dialect.name == "sqlite":
        with closing(engine.raw_connection()) as connection:  # no transaction may be around it
            connection.cursor().execute("VACUUM")
    engine.dispose()
    print(f"{rows} rows are gone")


def _stopped(context: typer.Context) -> None:
    """Only one may write."""
    if refusal(context.obj.control_socket) not in GONE:
        raise Refused("unicrond runs: stop it first (systemctl stop unicrond)")


def _found(context: typer.Context) -> str:
    engine = reading_engine(context.obj.database_url)
    try:
        return migrate.current(engine)
    finally:
        engine.dispose()


def _give_to_owner_of_folder(engine: Engine) -> None:
    """Made by root, the file would be closed to unicrond."""
    if engine.dialect.name != "sqlite" or os.geteuid() != 0:
        return
    path = Path(engine.url.database or "")
    owner = path.parent.stat()
    os.chown(path, owner.st_uid, owner.st_gid)
