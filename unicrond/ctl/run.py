"""`unicronctl run weight|floor|resize`: what a run's work is worth, what it is guaranteed, and its
size."""

from __future__ import annotations

from typing import Annotated

import typer

from unicrond.ctl.client import Client
from unicrond.ctl.show import DryRun

RunId = Annotated[int, typer.Argument(metavar="RUN", help="Slurm's job id.")]
Why = Annotated[str, typer.Option("--why", help="Remembered with the change.")]

app = typer.Typer(no_args_is_help=True, help="Change a run's share of the cluster.")


@app.command()
def weight(
    context: typer.Context,
    run: RunId,
    weight: Annotated[float, typer.Argument(metavar="W", help="What a FLOP of it is worth.")],
    why: Why = "",
    dry_run: DryRun = False,
) -> None:
    """Set its weight; its owner may only lower it."""
    _set(context, run, {"weight": weight, "why": why}, dry_run)


@app.command()
def floor(
    context: typer.Context,
    run: RunId,
    nodes: Annotated[int, typer.Argument(metavar="N", help="Nodes; 0: nothing is guaranteed.")],
    why: Why = "",
    dry_run: DryRun = False,
) -> None:
    """Set how many nodes every plan leaves it."""
    _set(context, run, {"floor_nodes": nodes, "why": why}, dry_run)


@app.command()
def resize(
    context: typer.Context,
    run: RunId,
    nodes: Annotated[int, typer.Argument(metavar="N", help="Nodes that it is to have.")],
    why: Why = "",
    dry_run: DryRun = False,
) -> None:
    """Grow it by a companion job, or shrink it; its owner may only shrink it."""
    client = Client(context.obj)
    if dry_run:
        found = client.get(f"/runs/{run}")
        before = len(found["running_on"])
        verb = "grow" if nodes > before else "shrink"
        print(
            f"would {verb} run {run} of {found['user']} from {before} to {nodes} nodes"
            f" (its user allows {found['min_nodes']} to {found['max_nodes']})"
        )
        return
    done = client.post(f"/runs/{run}/resize", {"nodes": nodes, "why": why})
    print(f"run {run}: from {done['before']} to {done['nodes']} nodes; see `unicronctl why {run}`")


def _set(context: typer.Context, run: int, wanted: dict[str, object], dry_run: bool) -> None:
    client = Client(context.obj)
    if dry_run:
        found = client.get(f"/runs/{run}")
        changes = [
            f"{name.replace('_nodes', '')} {value:g}"
            for name, value in wanted.items()
            if name != "why"
        ]
        print(f"would give run {run} of {found['user']} {', '.join(changes)}")
        return
    now = client.post(f"/runs/{run}/share", wanted)
    print(f"run {run}: weight {now['weight']:g}, floor {now['floor_nodes']} nodes")
