"""`unicronctl reliability`: how often nodes fail, which are lemons, how long changes take."""

from __future__ import annotations

import typer

from unicrond.ctl.client import Client
from unicrond.ctl.show import AsJson, Columns, Item, NoHeader, Shape, how_long, print_json, show

POOLS: Columns = {
    "pool": lambda p: p["name"],
    "nodes": lambda p: p["nodes"],
    "failures": lambda p: p["node"]["failures"],
    "node_days": lambda p: f"{p['node']['days']:.4g}",
    "mtbf_days": lambda p: _mtbf(p["node"]),
    "measured": lambda p: f"{100 * p['node']['from_data']:.0f} %",
    "together": lambda p: p["switch"]["failures"],
    "switch_mtbf_days": lambda p: _mtbf(p["switch"]),
    "weibull": lambda p: _shape(p["shape"]),
    "aging": lambda p: f"{p['aging']:.2f}" if p["shape"] else "",
}
NODES: Columns = {
    "node": lambda n: n["node"],
    "pool": lambda n: n["pool"],
    "lemon": lambda n: n["lemon"],
    "probability": lambda n: f"{100 * n['lemon_probability']:.0f} %",
    "failures": lambda n: n["failures"],
    "mtbf_days": lambda n: _mtbf(n),
    "x_pool": lambda n: f"{n['times_pool']:.2g}",
}
TRANSITIONS: Columns = {
    "change": lambda t: t["kind"],
    "takes": lambda t: how_long(t["seconds"]),
    "interval": lambda t: f"{how_long(t['low'])} - {how_long(t['high'])}",
    "seen": lambda t: t["seen"],
    "prior": lambda t: t["prior"],
}
REPAIRS: Columns = {
    "pool": lambda r: r["pool"],
    "away": lambda r: f"{r['hours']:.3g} h",
    "interval": lambda r: f"{r['low']:.3g} h - {r['high']:.3g} h",
    "seen": lambda r: r["seen"],
    "prior": lambda r: r["prior"],
}


def reliability(
    context: typer.Context, noheader: NoHeader = False, as_json: AsJson = False
) -> None:
    """How often nodes fail, with intervals of 90 %; lemons; how long changes take."""
    answer = Client(context.obj).get("/reliability")
    if as_json:
        print_json(answer)
        return
    shape = Shape(noheader=noheader)
    show(answer["pools"], POOLS, list(POOLS), shape)
    if answer["nodes"]:
        print("\nnodes that failed, the worst first:")
        show(answer["nodes"], NODES, list(NODES), shape)
    print("\nchanges, from when a fault was noticed until ranks ran again:")
    show(answer["transitions"], TRANSITIONS, list(TRANSITIONS), shape)
    if answer["repairs"]:
        print("\nnodes out of service, until they are back:")
        show(answer["repairs"], REPAIRS, list(REPAIRS), shape)
    rates = [pool[of] for pool in answer["pools"] for of in ("node", "switch")]
    for prior in sorted({rate["prior"] for rate in rates}):
        print(f"prior: {prior}")


def _mtbf(rate: Item) -> str:
    return f"{rate['mtbf_days']:.3g} ({rate['mtbf_days_low']:.3g}-{rate['mtbf_days_high']:.3g})"


def _shape(shape: Item | None) -> str:
    return f"{shape['shape']:.2f} ({shape['low']:.2f}-{shape['high']:.2f})" if shape else ""
