"""`unicronctl mode`: shows or sets whether unicrond acts, for the cluster or for one run."""

from __future__ import annotations

from typing import Annotated

import typer

from unicrond.ctl.client import Client
from unicrond.model.decision import Mode


def mode(
    context: typer.Context,
    wanted: Annotated[Mode | None, typer.Argument(metavar="[observe|active|paused]")] = None,
    run: Annotated[int | None, typer.Option("-r", "--run", help="Of this run alone.")] = None,
    why: Annotated[str, typer.Option("--why", help="Remembered with the change.")] = "",
) -> None:
    """Show the mode, or set it: observe decides and records, active acts, paused does neither."""
    client = Client(context.obj)
    if wanted is not None:
        client.post("/mode", {"mode": wanted, "run_id": run, "why": why})
        print(wanted)
    elif run is not None:
        print(client.get(f"/runs/{run}")["mode"] or "the cluster's")
    else:
        print(client.get("/health")["mode"] or "unknown")
