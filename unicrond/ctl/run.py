"""`unicronctl run weight|floor`: what a run's work is worth, and what it is guaranteed."""

from __future__ import annotations

from typing import Annotated

import typer

from unicrond.ctl.client import Client

RunId = Annotated[int, typer.Argument(metavar="RUN", help="Slurm's job id.")]
Why = Annotated[str, typer.Option("--why", help="Remembered with the change.")]

app = typer.Typer(no_args_is_help=True, help="Change a run's share of the cluster.")


@app.command()
def weight(
    context: typer.Context,
    run: RunId,
    weight: Annotated[float, typer.Argument(metavar="W", help="What a FLOP of it is worth.")],
    why: Why = "",
) -> None:
    """Set its weight; its owner may only lower it."""
    _set(context, run, {"weight": weight, "why": why})


@app.command()
def floor(
    context: typer.Context,
    run: RunId,
    nodes: Annotated[int, typer.Argument(metavar="N", help="Nodes; 0: nothing is guaranteed.")],
    why: Why = "",
) -> None:
    """Set how many nodes every plan leaves it."""
    _set(context, run, {"floor_nodes": nodes, "why": why})


def _set(context: typer.Context, run: int, wanted: dict[str, object]) -> None:
    now = Client(context.obj).post(f"/runs/{run}/share", wanted)
    print(f"run {run}: weight {now['weight']:g}, floor {now['floor_nodes']} nodes")
