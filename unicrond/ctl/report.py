"""`unicronctl report`: where GPU time went, and what was lost to what."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from unicrond.ctl.accounted import Accounted, accounted
from unicrond.ctl.client import Client
from unicrond.ctl.show import (
    AsJson,
    Columns,
    Format,
    Item,
    NoHeader,
    Shape,
    print_json,
    show,
    when,
)
from unicrond.errors import BadInput
from unicrond.ledger import CAUSES
from unicrond.slurm import accounting

HOUR = 3600.0
BY = ("account", "user", "run", "job", "node", "cause", "kind")
MOST_ROWS = 20_000
LARGEST_BYTES = 512 << 20
_AGO = re.compile(r"now(?:-(\d{1,5})(minutes?|hours?|days?|weeks?))?")
_UNITS = {"minute": 60.0, "hour": HOUR, "day": 86_400.0, "week": 7 * 86_400.0}


def _of(cause: str) -> Callable[[Item], str]:
    return lambda row: _hours(row["causes"].get(cause, 0.0))


COLUMNS: Columns = {
    "key": lambda row: row["key"],
    "gpu_hours": lambda row: _hours(row["gpu_seconds"]),
    "lost": lambda row: _hours(row["lost_gpu_seconds"]),
    "goodput": lambda row: "" if row["goodput"] is None else f"{row['goodput']:.1%}",
    **{cause.replace(" ", "_"): _of(cause) for cause in CAUSES},
}
USUAL = ("key", "gpu_hours", "lost", "goodput", "detection", "transition", "requeued", "unmended")


def report(
    context: typer.Context,
    began: Annotated[str, typer.Option("--from", help="2026-11-30, or now-7days.")] = "now-1day",
    ended: Annotated[str, typer.Option("--to", help="The same.")] = "now",
    by: Annotated[str, typer.Option("--by", help=f"One of {', '.join(BY)}.")] = "account",
    sacct: Annotated[
        str | None,
        typer.Option(help="Hold it against Slurm's accounting: sacct, or a file of its output."),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with plots there.")] = None,
    noheader: NoHeader = False,
    as_json: AsJson = False,
    format: Format = "",
) -> None:
    """GPU time by account, user, run, node or cause: what trained, and what was lost to what."""
    if by not in BY:
        raise BadInput(f"--by: {by!r} is none of {', '.join(BY)}")
    client, span = (
        Client(context.obj),
        {"from": moment(began, "--from"), "to": moment(ended, "--to")},
    )
    found = client.get("/ledger", by=by, limit=MOST_ROWS, **span)
    if sacct is not None:
        jobs = client.get("/ledger", by="job", limit=MOST_ROWS, **span)["rows"]
        live = {job["job_id"] for job in client.items("/allocations")}
        told = accounting.parse(_accounting(sacct, span["from"]), sacct)
        found["accounting"] = accounted(told, jobs, live, found["began"], found["ended"]).as_dict()
    if html is not None:
        _write(html, found)
    elif as_json:
        print_json(found)
    else:
        _tell(found, Shape(noheader=noheader, format=format))


def moment(text: str, option: str) -> float:
    """As Slurm's commands take it, in local time."""
    if ago := _AGO.fullmatch(text):
        back = float(ago[1]) * _UNITS[ago[2].rstrip("s")] if ago[1] else 0.0
        return max(0.0, time.time() - back)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise BadInput(f"{option}: {text!r} is no time; write 2026-11-30, or now-7days") from None


def _accounting(source: str, since: float) -> str:
    if source == "sacct":
        return accounting.ask(datetime.fromtimestamp(since).strftime("%Y-%m-%dT%H:%M:%S"))
    try:
        path = Path(source)
        if path.stat().st_size > LARGEST_BYTES:
            raise BadInput(f"--sacct: {source} is larger than {LARGEST_BYTES >> 20} MiB")
        return path.read_text(errors="replace")
    except OSError as error:
        raise BadInput(f"--sacct: cannot read {source}: {error.strerror}") from None


def _write(path: Path, found: dict[str, Any]) -> None:
    from unicrond.ctl.reportpage import page  # plots are slow to import

    try:
        path.write_text(page(found), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"--html: cannot write {path}: {error.strerror}") from None
    print(path)


def _tell(found: dict[str, Any], shape: Shape) -> None:
    total = found["total"]
    show(found["rows"] + [total], COLUMNS, USUAL, shape)
    if shape.noheader or shape.format:
        return
    print(f"\n{when(found['began'])} to {when(found['ended'])}, in GPU-hours")
    if found["more"]:
        print(f"more than {MOST_ROWS} rows: those that lost least are left out")
    if told := found.get("accounting"):
        print(Accounted.sentence(told))


def _hours(seconds: float) -> str:
    return f"{seconds / HOUR:.2f}"
