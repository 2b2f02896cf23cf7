"""`unicronctl model show RUN`: how long a run's iterations take, by its workers, and how sure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from unicrond.ctl.client import Client
from unicrond.ctl.show import AsJson, Columns, NoHeader, Shape, print_json, show

PLOT_WIDTH = 50

MEASURED: Columns = {
    "workers": lambda m: m["workers"],
    "seconds": lambda m: f"{m['seconds']:.4g} ±{100 * m['noise']:.2g} %",
    "windows": lambda m: m["windows"],
    "iterations": lambda m: m["iterations"],
}
PARAMETERS: Columns = {
    "parameter": lambda p: p["name"],
    "value": lambda p: f"{p['value']:.3g}",
    "interval": lambda p: f"{p['low']:.3g} - {p['high']:.3g}",
    "measured": lambda p: f"{100 * p['from_data']:.0f} %",
    "prior": lambda p: p["prior"],
}

app = typer.Typer(no_args_is_help=True, help="What was learned of a run's throughput.")


@app.callback()
def _() -> None:
    """Keeps `show` a command of its own."""


@app.command("show")
def show_model(
    context: typer.Context,
    run: Annotated[int, typer.Argument(metavar="RUN", min=0)],
    noheader: NoHeader = False,
    as_json: AsJson = False,
) -> None:
    """Throughput of a run by its workers: what was measured, what is prior, how sure it is."""
    answer = Client(context.obj).get(f"/runs/{run}/model")
    if as_json:
        print_json(answer)
        return
    shape = Shape(noheader=noheader)
    print(f"run {run}: {_told(answer['told'])}; GPU type {answer['gpu_type'] or 'not known'}")
    if answer["doubt"]:
        print(f"not believed: {answer['doubt']}")
    if answer["measured"]:
        print("\nmeasured, seconds of an iteration:")
        show(answer["measured"], MEASURED, list(MEASURED), shape)
    else:
        print("\nnothing measured yet: all of it is prior")
    print("\nlearned (interval of 90 %; measured: the part of the prior's variance that is gone):")
    show(answer["parameters"], PARAMETERS, list(PARAMETERS), shape)
    print(f"\n{answer['unit']} by workers (* measured, - interval of 90 %):")
    for line in plot(answer["estimates"]):
        print(line)


def _told(told: Mapping[str, Any]) -> str:
    flops = told["flops_per_iteration"]
    words = [f"{flops:.3g} FLOP an iteration" if flops else "FLOPs not told"]
    words.append(f"batch {told['batch_scaling']}")
    if told["micro_batches"]:
        words.append(f"{told['micro_batches']} micro-batches")
    if told["parameters"]:
        words.append(f"{told['parameters']:.3g} parameters")
    return ", ".join([*words, f"layouts {','.join(told['layouts'])}"])


def plot(estimates: list[Mapping[str, Any]]) -> Iterator[str]:
    """A line each: the interval as a bar on a logarithmic scale, the estimate on it."""
    if not estimates:
        return
    lowest, highest = min(e["low"] for e in estimates), max(e["high"] for e in estimates)
    wide = max(len(str(e["workers"])) for e in estimates)
    span = math.log(highest / lowest) or 1.0

    def column(rate: float) -> int:
        return round((PLOT_WIDTH - 1) * math.log(rate / lowest) / span)

    for e in estimates:
        low, middle, high = column(e["low"]), column(e["rate"]), column(e["high"])
        mark = "*" if e["measured"] else "o"
        bar = " " * low + "-" * (middle - low) + mark + "-" * (high - middle)
        yield f"{e['workers']:>{wide}} {e['rate']:>9.3g} |{bar:<{PLOT_WIDTH}}|"
