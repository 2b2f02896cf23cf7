"""`unicronctl status`: the whole cluster on one screen; exit code 1 when something is not well."""

from __future__ import annotations

from collections import Counter
from typing import Any

import typer
from rich.text import Text

from unicrond.ctl.client import Client
from unicrond.ctl.lists import INCIDENTS, INCIDENTS_USUAL, RUNS, RUNS_USUAL
from unicrond.ctl.show import STYLES, AsJson, Shape, console, folded, how_long, print_json, show


def status(context: typer.Context, as_json: AsJson = False) -> None:
    """How unicrond, its runs and its nodes are."""
    client = Client(context.obj)
    health = client.get("/health")
    lists: dict[str, list[Any]] = {"runs": [], "incidents": [], "nodes": [], "allocations": []}
    if health["database"] == "ok":
        lists = {
            "runs": client.items("/runs", live=True),
            "incidents": client.items("/incidents", open=True),
            "nodes": client.items("/nodes"),
            "allocations": client.items("/allocations"),
        }
    if as_json:
        print_json({"health": health, **lists})
    else:
        _print(health, **lists)
    raise typer.Exit(0 if health["ok"] else 1)


def _print(
    health: dict[str, Any],
    runs: list[Any],
    incidents: list[Any],
    nodes: list[Any],
    allocations: list[Any],
) -> None:
    out = console()
    for line in summary(health, nodes, allocations):
        out.print(line)
    if runs:
        out.print()
        show(runs, RUNS, RUNS_USUAL, Shape())
    if incidents:
        out.print()
        show(incidents, INCIDENTS, INCIDENTS_USUAL, Shape())


def summary(health: dict[str, Any], nodes: list[Any], allocations: list[Any]) -> list[Text]:
    """A line for each part."""
    seen = health["snapshot_age_seconds"] is not None  # else none is known, which is not "none"
    return [
        Text.assemble((f"{name:<9} ", "bold"), (words, STYLES.get(words, "")))
        for name, words in (
            ("cluster", health["cluster"]),
            ("mode", health["mode"] or "unknown"),
            ("unicrond", f"{health['loop']}, heard {_ago(health['loop_age_seconds'])}"),
            *_leader(health.get("leader")),
            ("agents", _known(health["agents_connected"])),
            ("slurm", f"{health['slurm']}, seen {_ago(health['snapshot_age_seconds'])}"),
            ("database", health["database"]),
            ("nodes", _nodes(nodes) if seen else "unknown"),
            ("gpus", _gpus(nodes, allocations) if seen else "unknown"),
        )
    ]


def _leader(leader: dict[str, Any] | None) -> list[tuple[str, str]]:
    """No line where one unicrond is alone."""
    if leader is None:
        return []
    age, term = _ago(leader["lease_age_seconds"]), leader["term"]
    if leader["host"] is None:
        return [("leader", f"nobody: the last one gave its lease back {age} (term {term})")]
    here = "which answers" if leader["here"] else "the one that answers stands by"
    return [("leader", f"{leader['host']}, {here}; term {term}, renewed {age}")]


def _ago(seconds: float | None) -> str:
    return "never" if seconds is None else f"{how_long(seconds)} ago"


def _known(value: object) -> str:
    return "unknown" if value is None else str(value)


def _nodes(nodes: list[Any]) -> str:
    """All that are up are counted; the others are named."""
    counts = Counter(node["state"] for node in nodes)
    parts = [f"{counts['up']} up"]
    for state in ("drained", "down", "unknown"):
        if counts[state]:
            names = folded(node["name"] for node in nodes if node["state"] == state)
            parts.append(f"{counts[state]} {state} ({names})")
    return ", ".join(parts)


def _gpus(nodes: list[Any], allocations: list[Any]) -> str:
    total = sum(node["gpus"] for node in nodes)
    held = [a for a in allocations if a["nodes"] and a["state"] in ("running", "completing")]
    managed = sum(a["gpus"] for a in held if a["managed"])
    other = sum(a["gpus"] for a in held) - managed
    return f"{total}, {managed} in managed runs, {other} in other jobs"
