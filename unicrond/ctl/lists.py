"""`unicronctl runs|incidents|nodes|allocations|detectors`: what there is, a line each."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Annotated

import typer

from unicrond.ctl.client import Answer, Client
from unicrond.ctl.completion import runs as run_ids
from unicrond.ctl.show import (
    AsJson,
    Columns,
    Format,
    Nodes,
    NoHeader,
    Shape,
    Verbose,
    folded,
    nodes_of,
    show,
    when,
)

User = Annotated[str, typer.Option("-u", "--user", help="Of this user only.")]
OfRun = Annotated[
    int | None,
    typer.Option("-r", "--run", autocompletion=run_ids, help="Of this run only."),
]
States = Annotated[
    str, typer.Option("-t", "--states", help="Only in these states, comma-separated.")
]
All = Annotated[bool, typer.Option("-a", "--all", help="Those that are over too.")]

RUNS: Columns = {
    "run": lambda r: r["run_id"],
    "name": lambda r: r["name"],
    "user": lambda r: r["user"],
    "state": lambda r: r["state"],
    "healing": lambda r: r["healing"],
    "mode": lambda r: r["mode"],
    "gen": lambda r: r["generation"],
    "iteration": lambda r: r["iteration"] if r["iteration"] >= 0 else None,
    "ranks": lambda r: len(r["ranks"]),
    "weight": lambda r: f"{r['weight']:g}",
    "min": lambda r: r["min_nodes"],
    "max": lambda r: r["max_nodes"],
    "running_on": lambda r: folded(r["running_on"]),
    "nodes": lambda r: folded(r["nodes"]),
    "shunned": lambda r: folded(r["shunned"]),
    "agents": lambda r: sum(agent["connected"] for agent in r["agents"]),
    "restarts": lambda r: r["restarts"],
    "reason": lambda r: r["end_reason"],
}
RUNS_USUAL = ("run", "name", "user", "state", "healing", "gen", "iteration", "ranks", "running_on")

INCIDENTS: Columns = {
    "incident": lambda i: f"i{i['incident_id']}",
    "opened": lambda i: when(i["opened_at"]),
    "severity": lambda i: i["severity"],
    "kind": lambda i: i["kind"],
    "scope": lambda i: i["scope"],
    "state": lambda i: i["state"],
    "run": lambda i: i["run_id"],
    "gen": lambda i: i["generation"],
    "node": lambda i: i["root_node"],
    "rank": lambda i: i["root_rank"],
    "signals": lambda i: i["count"],
    "noticed": lambda i: when(i["first_signal_at"]),
    "decided": lambda i: when(i["decided_at"]),
    "closed": lambda i: when(i["closed_at"]),
    "rule": lambda i: i["rule"],
    "summary": lambda i: i["summary"],
}
INCIDENTS_USUAL = ("incident", "opened", "severity", "kind", "state", "run", "node", "summary")

NODES: Columns = {
    "node": lambda n: n["name"],
    "state": lambda n: n["state"],
    "slurm": lambda n: n["raw_state"],
    "gpus": lambda n: n["gpus"],
    "partitions": lambda n: ",".join(n["partitions"]),
    "since": lambda n: when(n["changed_at"]),
    "by": lambda n: n["reason_user"],
    "reason": lambda n: n["reason"],
}
NODES_USUAL = ("node", "state", "slurm", "gpus", "since", "reason")

ALLOCATIONS: Columns = {
    "job": lambda a: a["job_id"],
    "name": lambda a: a["name"],
    "user": lambda a: a["user"],
    "account": lambda a: a["account"],
    "partition": lambda a: a["partition"],
    "state": lambda a: a["state"],
    "managed": lambda a: "yes" if a["managed"] else "not managed",
    "gpus": lambda a: a["gpus"],
    "submitted": lambda a: when(a["submit_time"]),
    "started": lambda a: when(a["start_time"]),
    "ended": lambda a: when(a["end_time"]),
    "restarts": lambda a: a["restarts"],
    "nodes": lambda a: folded(a["nodes"]),
    "reason": lambda a: a["reason"],
}
ALLOCATIONS_USUAL = ("job", "name", "user", "partition", "state", "managed", "gpus", "nodes")

DETECTORS: Columns = {
    "rule": lambda d: d["rule"],
    "kind": lambda d: d["kind"],
    "bar": lambda d: f"{d['needs']:.2f}",
    "credit": lambda d: d["credit"],
    "confirmed": lambda d: d["confirmed"],
    "refuted": lambda d: d["refuted"],
    "undecided": lambda d: d["undecided"],
    "does": lambda d: "acts" if d["acts"] else "observes",
    "observes_for": lambda d: ",".join(d["observes_for"]),
}


def runs(
    context: typer.Context,
    everything: All = False,
    user: User = "",
    nodelist: Nodes = "",
    states: States = "",
    noheader: NoHeader = False,
    as_json: AsJson = False,
    format: Format = "",
    verbose: Verbose = False,
) -> None:
    """Runs that unicrond looks after, newest first."""
    items = _client(context).items("/runs", live=not everything, user=user)
    items = _chosen(items, states, nodelist, lambda r: {*r["nodes"], *r["running_on"]})
    show(items, RUNS, RUNS_USUAL, Shape(noheader, as_json, format, verbose))


def incidents(
    context: typer.Context,
    everything: All = False,
    run: Annotated[
        int | None, typer.Option("-r", "--run", autocompletion=run_ids, help="Of this run only.")
    ] = None,
    nodelist: Nodes = "",
    states: States = "",
    noheader: NoHeader = False,
    as_json: AsJson = False,
    format: Format = "",
    verbose: Verbose = False,
) -> None:
    """What went wrong and is not mended yet, newest first."""
    items = _client(context).items("/incidents", open=not everything, run_id=run)
    items = _chosen(items, states, nodelist, lambda i: {i["root_node"]})
    show(items, INCIDENTS, INCIDENTS_USUAL, Shape(noheader, as_json, format, verbose))


def nodes(
    context: typer.Context,
    nodelist: Nodes = "",
    states: States = "",
    partition: Annotated[
        str, typer.Option("-p", "--partition", help="Of this partition only.")
    ] = "",
    noheader: NoHeader = False,
    as_json: AsJson = False,
    format: Format = "",
    verbose: Verbose = False,
) -> None:
    """Nodes, as Slurm last described them."""
    items = _client(context).items("/nodes")
    items = _chosen(items, states, nodelist, lambda n: {n["name"]})
    if partition:
        items = [node for node in items if partition in node["partitions"]]
    show(items, NODES, NODES_USUAL, Shape(noheader, as_json, format, verbose))


def allocations(
    context: typer.Context,
    everything: All = False,
    user: User = "",
    nodelist: Nodes = "",
    states: States = "",
    noheader: NoHeader = False,
    as_json: AsJson = False,
    format: Format = "",
    verbose: Verbose = False,
) -> None:
    """Slurm jobs with GPUs, managed or not, newest first."""
    items = _client(context).items("/allocations", current=not everything, user=user)
    items = _chosen(items, states, nodelist, lambda a: set(a["nodes"]))
    show(items, ALLOCATIONS, ALLOCATIONS_USUAL, Shape(noheader, as_json, format, verbose))


def detectors(
    context: typer.Context,
    noheader: NoHeader = False,
    as_json: AsJson = False,
    format: Format = "",
) -> None:
    """Rules that find faults: their record here, and whether they act or only observe."""
    items = _client(context).items("/detectors")
    show(items, DETECTORS, tuple(DETECTORS), Shape(noheader, as_json, format))


def _chosen(
    items: list[Answer],
    states: str,
    nodelist: str,
    nodes: Callable[[Answer], Collection[str]],
) -> list[Answer]:
    """Those in one of the states and on one of the nodes; all where nothing is asked for."""
    if nodelist:
        wanted = frozenset(nodes_of(nodelist))
        items = [item for item in items if not wanted.isdisjoint(nodes(item))]
    if states:
        names = {name.strip().lower() for name in states.split(",")}
        items = [item for item in items if item["state"] in names]
    return items


def _client(context: typer.Context) -> Client:
    return Client(context.obj)
