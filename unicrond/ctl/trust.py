"""`unicronctl trust`, `pause` and `unpause`: what unicrond may do by itself, and what it would have
done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from unicrond.ctl.client import Client
from unicrond.ctl.show import (
    AsJson,
    Columns,
    DryRun,
    NoHeader,
    Shape,
    how_long,
    print_json,
    show,
    when,
)
from unicrond.errors import BadInput

ACTIONS: Columns = {
    "action": lambda a: a["action"],
    "observed": lambda a: a["observed"],
    "confirmed": lambda a: a["confirmed"],
    "refuted": lambda a: a["refuted"],
    "undecided": lambda a: a["undecided"],
    "bound": lambda a: f"{a['bound']:.2f}",
    "may_act": lambda a: a["may_act"],
    "people": lambda a: ", ".join(f"{what} {n}" for what, n in sorted(a["people"].items())),
    "theirs": lambda a: _time(a["actual_seconds"]),
    "ours": lambda a: _time(a["predicted_seconds"]),
    "saving": lambda a: _gpu_hours(a["saving_gpu_seconds"]),
}
RULES: Columns = {
    "rule": lambda r: r["rule"],
    "confirmed": lambda r: r["confirmed"],
    "refuted": lambda r: r["refuted"],
    "undecided": lambda r: r["undecided"],
    "bound": lambda r: f"{r['bound']:.2f}",
    "needs": lambda r: f"{r['needs']:.2f}",
    "may_act": lambda r: r["may_act"],
}
PAUSES: Columns = {
    "scope": lambda p: p["scope"],
    "what": lambda p: p["value"],
    "since": lambda p: when(p["at"]),
    "by": lambda p: p["who"],
    "why": lambda p: p["why"],
}
Partition = Annotated[str, typer.Option("-p", "--partition", help="Every run in it.")]
Action = Annotated[str, typer.Option("--action", help="A kind of action, such as drain.")]
Notices = Annotated[
    str, typer.Option("--notices", help="What people are told: all, 'run 4711', 'node n2'.")
]
Why = Annotated[str, typer.Option("--why", help="Remembered with it.")]


def trust(context: typer.Context, noheader: NoHeader = False, as_json: AsJson = False) -> None:
    """Whether unicrond may be switched on: what it would have done, and what people did."""
    found = Client(context.obj).get("/trust")
    if as_json:
        print_json(found)
        return
    shape = Shape(noheader=noheader)
    print(
        f"mode {found['mode'] or 'unknown'}; an action may act from a bound of {found['needed']}\n"
    )
    if found["actions"]:
        show(found["actions"], ACTIONS, list(ACTIONS), shape)
    else:
        print("nothing was decided and not carried out so far")
    if found["rules"]:
        print()
        show(found["rules"], RULES, list(RULES), shape)


def pause(
    context: typer.Context,
    partition: Partition = "",
    action: Action = "",
    notices: Notices = "",
    why: Why = "",
    dry_run: DryRun = False,
) -> None:
    """Pause a partition, a kind of action, or notices; without any, show what is paused.

    All of it: `unicronctl mode paused`; one run: `unicronctl mode paused --run RUN`."""
    client = Client(context.obj)
    if partition or action or notices:
        _set(client, "pause", _wanted(partition, action, notices, why), dry_run)
    else:
        show(client.get("/pauses")["items"], PAUSES, list(PAUSES), Shape())


def unpause(
    context: typer.Context,
    partition: Partition = "",
    action: Action = "",
    notices: Notices = "",
    why: Why = "",
    dry_run: DryRun = False,
) -> None:
    """End a pause of a partition, of a kind of action, or of notices."""
    _set(Client(context.obj), "unpause", _wanted(partition, action, notices, why), dry_run)


def _wanted(partition: str, action: str, notices: str, why: str) -> dict[str, Any]:
    named = {"partition": partition, "action": action, "notice": notices}
    found = [(scope, value) for scope, value in named.items() if value]
    if len(found) != 1:
        raise BadInput("name one of --partition, --action and --notices")
    return {"scope": found[0][0], "value": found[0][1], "why": why}


def _set(client: Client, command: str, wanted: Mapping[str, Any], dry_run: bool) -> None:
    if dry_run:
        print(f"would {command} {wanted['scope']} {wanted['value']}")
        return
    client.post(f"/{command}", dict(wanted))
    print(f"{wanted['scope']} {wanted['value']} {command}d")


def _time(seconds: float | None) -> str:
    return "" if seconds is None else how_long(seconds)


def _gpu_hours(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds / 3600:.1f} GPU-h"
