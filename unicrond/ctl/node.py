"""`unicronctl node drain|resume` and `unicronctl audit`."""

from __future__ import annotations

from typing import Annotated

import typer

from unicrond.ctl.client import Client
from unicrond.ctl.show import (
    AsJson,
    Columns,
    DryRun,
    Format,
    NoHeader,
    Shape,
    nodes_of,
    show,
    when,
)

Hosts = Annotated[str, typer.Argument(metavar="NODES", help="Such as n7, or n[1-3,7].")]
Why = Annotated[str, typer.Option("--why", help="Remembered with it, and in Slurm's reason.")]

AUDIT: Columns = {
    "at": lambda entry: when(entry["at"]),
    "who": lambda entry: entry["who"],
    "role": lambda entry: entry["role"],
    "via": lambda entry: entry["via"],
    "from": lambda entry: entry["origin"],
    "command": lambda entry: entry["command"],
    "subject": lambda entry: entry["subject"],
    "why": lambda entry: entry["why"],
    "refusal": lambda entry: entry["refusal"],
}

app = typer.Typer(no_args_is_help=True, help="Have nodes drained, or given back.")


@app.command()
def drain(context: typer.Context, nodes: Hosts, why: Why = "", dry_run: DryRun = False) -> None:
    """Slurm starts no new job there; in mode active runs leave."""
    _ask(Client(context.obj), "drain", nodes_of(nodes), why, dry_run)


@app.command()
def resume(context: typer.Context, nodes: Hosts, why: Why = "", dry_run: DryRun = False) -> None:
    """Give nodes back that unicrond drained; what others drained is theirs."""
    _ask(Client(context.obj), "resume", nodes_of(nodes), why, dry_run)


def _ask(client: Client, command: str, nodes: tuple[str, ...], why: str, dry_run: bool) -> None:
    for node in nodes:
        if dry_run:
            state = client.get(f"/nodes/{node}")["raw_state"]
            print(f"would {command} {node}; it is {state}")
        else:
            client.post(f"/nodes/{node}/{command}", {"why": why})
            print(f"{command} {node}: asked; `unicronctl why {node}` tells what comes of it")


def audit(
    context: typer.Context,
    user: Annotated[str, typer.Option("-u", "--user", help="Of this user only.")] = "",
    noheader: NoHeader = False,
    as_json: AsJson = False,
    format: Format = "",
) -> None:
    """Commands that were given: who, when, why, from where; the newest first."""
    items = Client(context.obj).items("/audit", who=user)
    show(items, AUDIT, tuple(AUDIT), Shape(noheader, as_json, format))
