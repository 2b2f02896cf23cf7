"""`unicronctl db`: the tables. Works on the database itself, also while unicrond is down."""

from __future__ import annotations

import os
from pathlib import Path

import typer
from sqlalchemy import Engine

from db import migrate
from db.engine import reading_engine, writing_engine
from db.schema import REVISIONS
from unicrond.ctl.show import DryRun

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
