"""`unicronctl db`: the tables. Works on the database itself, also while unicrond is down."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Annotated

import typer

from unicrond.ctl.client import refusal
from unicrond.ctl.show import DryRun
from unicrond.errors import Refused

GONE = (os.strerror(errno.ENOENT), os.strerror(errno.ECONNREFUSED))

app = typer.Typer(help="The tables of unicrond's database.", no_args_is_help=True)


@app.command()
def upgrade(context: typer.Context, dry_run: DryRun = False) -> None:
    """Bring the tables to the revision that this program needs; make them where there are none."""
    from unicrond.ctl import tables

    url = context.obj.database_url
    if dry_run:
        print(f"would go from {tables.found(url) or 'an empty database'} to {tables.NEEDED}")
        return
    before, after = tables.upgrade(url)
    print(f"revision {after}" + ("" if before == after else f", was {before or 'empty'}"))


@app.command()
def current(context: typer.Context) -> None:
    """Show the revision of the tables, and the one that this program needs."""
    from unicrond.ctl import tables

    found = tables.found(context.obj.database_url)
    print(f"revision {found or 'none'}, this program needs {tables.NEEDED}")
    raise typer.Exit(0 if found == tables.NEEDED else 1)


@app.command()
def backup(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Written anew, for you alone.")],
) -> None:
    """Write every table into a file, as they are at this moment. unicrond may work on meanwhile."""
    from unicrond.ctl import tables

    print(f"{tables.backup(context.obj.database_url, file)} rows in {file}")


@app.command()
def restore(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Of `db backup`.")],
    dry_run: DryRun = False,
) -> None:
    """Bring a backup back, into an empty database of any kind. unicrond must be stopped."""
    from unicrond.ctl import tables

    _stopped(context)
    url = context.obj.database_url
    if dry_run:
        print(f"would restore {file} into {tables.shown(url)}")
    else:
        print(f"{tables.restore(url, file)} rows from {file}")


@app.command()
def prune(
    context: typer.Context,
    days: Annotated[int, typer.Option(min=1, help="What ended longer ago is forgotten.")],
    dry_run: DryRun = False,
) -> None:
    """Forget now what is over and old, and give its room back. unicrond must be stopped."""
    from unicrond.ctl import tables

    _stopped(context)
    if dry_run:
        print(f"would forget what ended more than {days} days ago")
    else:
        print(f"{tables.prune(context.obj.database_url, days)} rows are gone")


def _stopped(context: typer.Context) -> None:
    """Only one may write."""
    if refusal(context.obj.control_socket) not in GONE:
        raise Refused("unicrond runs: stop it first (systemctl stop unicrond)")
