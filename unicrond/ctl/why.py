"""`unicronctl why`: the story of a run, an incident or a node, told so that a person likes it.

2026-11-30 UTC
12:03:04.1  signal    n2  n2 is silent
12:03:04.1  decision      n2 is lost: going on with 3 of 4 nodes
                            > go on with 3 nodes: loses a quarter of the run's FLOP/s
                              wait for n2: about 5 h idle
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Console
from rich.text import Text

from unicrond.ctl.client import Answer, Client
from unicrond.ctl.completion import subjects
from unicrond.ctl.show import STYLES, AsJson, NoHeader, console, nodes_of, print_json, printable

Lines = Annotated[
    int, typer.Option("-l", "--lines", help="Only the last so many.", min=1, max=1000)
]
Subject = Annotated[list[str], typer.Argument(metavar="RUN|NODE|INCIDENT", autocompletion=subjects)]
NARROWEST = 30


def why(
    context: typer.Context,
    subject: Annotated[
        list[str], typer.Argument(metavar="RUN|NODE|INCIDENT", autocompletion=subjects)
    ],
    lines: Lines = 200,
    noheader: NoHeader = False,
    as_json: AsJson = False,
) -> None:
    """What happened and why: of a run (4711), an incident (i12) or nodes (n3, n[1-3])."""
    client, named = Client(context.obj), subject_of(subject)
    subjects = nodes_of(named) if "[" in named else (named,)
    answers = [ask(client, one, lines) for one in subjects]
    if as_json:
        print_json(answers[0] if len(answers) == 1 else answers)
        return
    for answer in answers:
        _tell(answer, noheader)


def ask(client: Client, subject: str, lines: int) -> Answer:
    return client.get(f"/why/{quote(subject, safe='')}", limit=lines)


def _tell(answer: Answer, noheader: bool) -> None:
    out = console()
    if not noheader:
        summary = f"  {printable(answer['summary'])}"
        out.print(Text.assemble((answer["subject"], "bold"), summary))
    if answer["next"] is not None:
        out.print(Text("… more before this: --lines", style="dim"))
    for text in story(answer["lines"], out):
        out.print(text)


def subject_of(words: list[str]) -> str:
    """`incident 12` is i12, `run 4711` and `node n1` are what they say."""
    if len(words) == 2 and words[0] in ("run", "node", "incident"):
        return f"i{words[1].removeprefix('i')}" if words[0] == "incident" else words[1]
    return " ".join(words)


def story(lines: list[dict[str, Any]], out: Console) -> Iterator[Text]:
    widest = max((len(line["node"]) for line in lines), default=0)
    day = ""
    for line in lines:
        moment = time.localtime(line["at"])
        if (today := time.strftime("%Y-%m-%d %Z", moment)) != day:
            day = today
            yield Text(day, style="dim")
        tenth = int(line["at"] * 10) % 10
        clock = f"{time.strftime('%H:%M:%S', moment)}.{tenth}"
        yield from _told(line, clock, widest, out)


def _told(line: dict[str, Any], clock: str, widest: int, out: Console) -> Iterator[Text]:
    kind, node = line["kind"], printable(line["node"])
    margin = len(clock) + 2 + 8 + 2 + (widest + 2 if widest else 0)
    first, *rest = _wrapped(line["text"], margin, out)
    yield Text.assemble(
        (f"{clock}  ", "dim"),
        (f"{kind:<8}  ", _style(line)),
        (f"{node:<{widest}}  " if widest else "", "bold"),
        first,
    )
    for more in rest:
        yield Text(" " * margin + more)
    for alternative in (line["decision"] or {}).get("alternatives", []):
        mark, style = ("> ", "green") if alternative["chosen"] else ("  ", "dim")
        words = f"{alternative['name']}: {alternative['price']}"
        for part in _wrapped(words, margin + 4, out):
            yield Text(f"{' ' * (margin + 2)}{mark}{part}", style=style)
            mark = "  "


def _style(line: dict[str, Any]) -> str:
    bad = line["kind"] == "outcome" and any(w in line["text"] for w in (" failed", " refused"))
    return "red" if bad else STYLES.get(line["kind"], "")


def _wrapped(text: str, margin: int, out: Console) -> list[str]:
    """To a terminal's width; whole for whatever reads it otherwise."""
    parts = [printable(part) for part in text.splitlines()] or [""]
    if not out.is_terminal:
        return parts
    width = max(NARROWEST, out.width - margin)
    return [line for part in parts for line in textwrap.wrap(part, width) or [""]]
