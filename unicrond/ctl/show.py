"""How answers are shown: aligned columns for people and scripts, JSON for programs.

Colours appear on a terminal only. Words that came from users or their programs lose their control
characters, which could rewrite a terminal.
"""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from unicrond.errors import BadInput
from unicrond.slurm.hostlist import BadHostlist, expand, fold

Item = Mapping[str, Any]
NoHeader = Annotated[bool, typer.Option("-n", "--noheader", help="No line of headings.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON, with every field.")]
Format = Annotated[str, typer.Option("-o", "--format", help="Columns, comma-separated.")]
Nodes = Annotated[str, typer.Option("-w", "--nodelist", help="Of these nodes: n[1-3,7].")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done, and do not do it.")
]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Every column.")]

STYLES = {
    "active": "green", "observe": "cyan", "paused": "yellow",
    "running": "green", "starting": "cyan", "healing": "yellow", "requeued": "yellow",
    "completed": "dim", "failed": "red", "cancelled": "dim", "pending": "dim",
    "open": "yellow", "resolved": "green", "person": "bold red", "closed": "dim",
    "up": "green", "drained": "yellow", "down": "red", "unknown": "magenta",
    "signal": "yellow", "decision": "bold cyan", "plan": "cyan", "action": "magenta",
    "outcome": "green",
}  # fmt: skip

Columns = Mapping[str, Callable[[Item], object]]
"""Name to what stands there; the name in capitals is the heading."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the options of one call ask for."""

    noheader: bool = False
    as_json: bool = False
    format: str = ""
    verbose: bool = False


def console() -> Console:
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True)


def show(items: Sequence[Item], columns: Columns, usual: Sequence[str], shape: Shape) -> None:
    names = _names(columns, usual, shape)
    if shape.as_json:
        print_json(items)
        return
    rows = [[cell(columns[name](item)) for name in names] for item in items]
    headings = [] if shape.noheader else [[name.upper() for name in names]]
    widths = [max(map(len, column)) for column in zip(*headings, *rows, strict=True)]
    out = console()
    for row in headings:
        out.print(Text(_aligned(row, widths), style="bold"))
    for row in rows:
        out.print(_coloured(row, widths))


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _names(columns: Columns, usual: Sequence[str], shape: Shape) -> Sequence[str]:
    if not shape.format:
        return list(columns) if shape.verbose else usual
    names = [name.strip().lower() for name in shape.format.split(",")]
    for name in names:
        if name not in columns:
            near = difflib.get_close_matches(name, columns, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise BadInput(f"--format: no column {name!r}; {hint}columns: {','.join(columns)}")
    return names


def cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _coloured(row: Sequence[str], widths: Sequence[int]) -> Text:
    cells = zip(row, widths, strict=True)
    line = Text("  ").join(Text(cell.ljust(w), style=STYLES.get(cell, "")) for cell, w in cells)
    line.rstrip()
    return line


def printable(text: str) -> str:
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def nodes_of(hostlist: str) -> tuple[str, ...]:
    """The names of an option such as -w n[1-3]."""
    try:
        return expand(hostlist)
    except BadHostlist as error:
        raise BadInput(f"{hostlist!r}: {error}; write a hostlist such as n[1-3,7]") from None


def folded(names: Iterable[str]) -> str:
    """A hostlist, as Slurm's own commands show it."""
    names = list(names)
    try:
        return fold(names)
    except BadHostlist:
        return ",".join(names)


def when(at: float | None) -> str:
    """Local time, as Slurm's commands show it; "-" for what has not been."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at)) if at else "-"


def how_long(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    clock = f"{hours:02}:{minutes:02}:{seconds:02}"
    return f"{days}-{clock}" if days else clock
