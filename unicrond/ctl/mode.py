"""`unicronctl mode`: shows or sets whether unicrond acts, for the cluster or for one run."""

from __future__ import annotations

from typing import Annotated

import typer

from unicrond.ctl.client import Client
from unicrond.ctl.lists import OfRun
from unicrond.ctl.show import DryRun
from unicrond.model.decision import Mode


def mode(
    context: typer.Context,
    wanted: Annotated[Mode | None, typer.Argument(metavar="[observe|active|paused]")] = None,
    run: OfRun = None,
    why: Annotated[str, typer.Option("--why", help="Remembered with the change.")] = "",
    dry_run: DryRun = False,
) -> None:
    """Show the mode, or set it: observe decides and records, active acts, paused does neither."""
    client = Client(context.obj)
    if wanted is None:
        print(_now(client, run))
    elif dry_run:
        whose = "the cluster" if run is None else f"run {run}"
        print(f"would set the mode of {whose} to {wanted}; it is {_now(client, run)}")
    else:
        client.post("/mode", {"mode": wanted, "run_id": run, "why": why})
        print(wanted)


def _now(client: Client, run: int | None) -> str:
    if run is not None:
        return client.get(f"/runs/{run}")["mode"] or "the cluster's"
    return client.get("/health")["mode"] or "unknown"
