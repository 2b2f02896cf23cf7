"""`unicronctl incident confirm|refute`: a person says whether an incident was one."""

from __future__ import annotations

from typing import Annotated

import typer

from unicrond.ctl.client import Client
from unicrond.ctl.show import DryRun
from unicrond.errors import BadInput

Incident = Annotated[str, typer.Argument(metavar="INCIDENT", help="Such as i12, or 12.")]
Reason = Annotated[str, typer.Option("--reason", help="Remembered with it.")]

app = typer.Typer(no_args_is_help=True, help="Say whether an incident was one.")


@app.command()
def confirm(
    context: typer.Context, incident: Incident, reason: Reason = "", dry_run: DryRun = False
) -> None:
    """It was what it said: the rule that opened it was right."""
    _review(context, incident, "confirmed", reason, dry_run)


@app.command()
def refute(
    context: typer.Context, incident: Incident, reason: Reason = "", dry_run: DryRun = False
) -> None:
    """It was none, or another: the rule that opened it was wrong."""
    _review(context, incident, "refuted", reason, dry_run)


def _review(context: typer.Context, incident: str, proof: str, reason: str, dry_run: bool) -> None:
    number = incident.removeprefix("i")
    if not (number.isascii() and number.isdigit()):
        raise BadInput(f"INCIDENT: {incident!r} is no incident; see `unicronctl incidents`")
    client = Client(context.obj)
    if dry_run:
        found = client.get(f"/incidents/{number}")
        print(f"would call incident i{number} of rule {found['rule'] or 'none'} {proof}")
        return
    answer = client.post(f"/incidents/{number}/review", {"proof": proof, "why": reason})
    print(f"incident i{number} of rule {answer['rule']}: {answer['proof']}")
