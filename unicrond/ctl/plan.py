"""`unicronctl plan`: the best division of the cluster, or of one that a file describes, and why."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from unicrond.ctl.client import Client
from unicrond.ctl.show import AsJson, Columns, NoHeader, Shape, how_long, print_json, show, when
from unicrond.errors import BadInput

RUNS: Columns = {
    "run": lambda run: run["id"],
    "change": lambda run: run["change"],
    "before": lambda run: run["size_before"],
    "size": lambda run: run["size"],
    "pool": lambda run: run["pool"],
    "waf": lambda run: f"{run['waf']:.3g}",
    "nodes": lambda run: ",".join(run["nodes"]),
}
ALTERNATIVES: Columns = {
    "alternative": lambda option: option["name"],
    "chosen": lambda option: option["chosen"],
    "waf": lambda option: f"{option['waf']:.4g}",
    "price": lambda option: f"{option['price']:.3g}",
    "gain": lambda option: f"{option['gain']:.6g}",
    "payback": lambda option: _duration(option["payback_seconds"]),
    "obstacle": lambda option: option["obstacle"],
}
EVENTS: Columns = {
    "event": lambda entry: entry["event"],
    "then": lambda entry: entry["obstacle"] or "; ".join(entry["changes"]) or "all go on",
}
FOLLOWED: Columns = {
    "incident": lambda heal: heal["incident_id"],
    "run": lambda heal: heal["run_id"],
    "planned": lambda heal: heal["planned"],
    "done": lambda heal: heal["done"],
    "predicted": lambda heal: how_long(heal["predicted_seconds"]),
    "measured": lambda heal: how_long(heal["measured_seconds"]),
    "price_predicted": lambda heal: f"{heal['predicted_price']:.3g}",
    "price_measured": lambda heal: f"{heal['measured_price']:.3g}",
    "kept_predicted": lambda heal: _share(heal["predicted_kept"]),
    "kept_measured": lambda heal: _share(heal["measured_kept"]),
}


def plan(
    context: typer.Context,
    what_if: Annotated[
        Path | None, typer.Option("--what-if", help="JSON: docs/planner.md. - is stdin.")
    ] = None,
    next_event: Annotated[
        bool, typer.Option("--next", help="The plan for every single next event instead.")
    ] = False,
    noheader: NoHeader = False,
    as_json: AsJson = False,
) -> None:
    """The newest plan of unicrond, or the best division of a cluster that a file describes."""
    shape = Shape(noheader=noheader, as_json=as_json)
    if what_if is None and not next_event:
        _newest(Client(context.obj).get("/plan"), shape)
        return
    # before the slow imports: a wrong path answers at once
    text = _asked(context) if what_if is None else _read(what_if)
    from planner.answer import answer, next_answers
    from planner.question import parse

    question = parse(text)
    if next_event:
        show(next_answers(question), EVENTS, list(EVENTS), shape)
    elif as_json:
        print_json(answer(question))
    else:
        _tell(answer(question), shape)


def _asked(context: typer.Context) -> bytes:
    """The question behind the newest plan, without the limits of today."""
    found = Client(context.obj).get("/plan")
    return json.dumps(found["questions"]["unlimited"]).encode()


def _newest(found: Mapping[str, Any], shape: Shape) -> None:
    if shape.as_json:
        print_json(found)
        return
    print(f"{found['cause']}, {when(found['at'])}; sizes in nodes")
    for name, title in (
        ("today", "the best of what can be carried out today"),
        ("unlimited", "the best if everything could be carried out"),
    ):
        print(f"\n{title}:")
        if obstacle := found[name].get("obstacle"):
            print(f"no plan: {obstacle}")
        else:
            _tell(found[name], shape)
    if found["foreseen"]:
        print(f"\nforeseen: {found['foreseen']}")
    for line in found["assumed"]:
        print(f"\nassumed: {line}")
    if found["followed"]:
        print("\nprices of the newest heals, measured beside predicted:")
        show(found["followed"], FOLLOWED, list(FOLLOWED), shape)


def _read(path: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise BadInput(f"--what-if: cannot read {path}: {error.strerror}") from None


def _tell(answer: Mapping[str, Any], shape: Shape) -> None:
    print(f"{answer['choice']}: {answer['reason']}")
    print(f"proof: {answer['proof']}, at most {answer['gap']:.2g} below the best\n")
    show(answer["runs"], RUNS, list(RUNS), shape)
    print()
    show(answer["alternatives"], ALTERNATIVES, list(ALTERNATIVES), shape)


def _share(part: float | None) -> str:
    return "" if part is None else f"{part:.0%}"


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else how_long(seconds)
