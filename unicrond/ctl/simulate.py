"""`unicronctl simulate`: policies side by side on a simulated cluster. Talks to no daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from unicrond.ctl.show import AsJson, Columns, NoHeader, Shape, print_json, show
from unicrond.errors import BadInput

POLICIES: Columns = {
    "policy": lambda p: p["name"],
    "ours/it": lambda p: _ratio(p["ours_over_it"]),
    "worst": lambda p: f"{p['ours_over_it']['worst']:.3f}" if p["ours_over_it"] else "",
    "waf": lambda p: f"{p['waf_flop']:.4g}",
    "goodput": lambda p: _percent(p["goodput"]),
    "ettr": lambda p: _percent(p["ettr"]),
    "detection": lambda p: _lost(p, "detection"),
    "transition": lambda p: _lost(p, "transition"),
    "sub-healthy": lambda p: _lost(p, "sub_healthy"),
    "waiting": lambda p: _lost(p, "waiting"),
    "idle": lambda p: _lost(p, "idle"),
    "repair": lambda p: _lost(p, "repair"),
    "others": lambda p: _lost(p, "others"),
    "changes": lambda p: f"{p['changes']:.0f}",
    "about": lambda p: p["about"],
}
KNOWN: Columns = {
    "kind": lambda item: item["kind"],
    "name": lambda item: item["name"],
    "about": lambda item: item["about"],
}
HIDDEN = ("about",)
Incidents = Annotated[str | None, typer.Option(help="JSON of yours; or unicrond, to ask it.")]
LeastNodes = Annotated[int, typer.Option(min=1, help="Jobs of fewer nodes are no runs.")]
BY_PYTHON = cast(typer.Context, None)  # a caller that is not the command line


def simulate(
    scenario: Annotated[str, typer.Argument(help="A bundled one, or a JSON file.")] = "trace-a",
    policy: Annotated[
        list[str] | None, typer.Option(help="Which, again and again; the first is drawn thickest.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=10_000, help="How many traces.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 1,
    runs: Annotated[str | None, typer.Option(help="A bundled mix of runs instead.")] = None,
    repair_hours: Annotated[
        float | None, typer.Option(min=0.001, help="Mean time of a repair instead.")
    ] = None,
    others_waiting: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Freed nodes are Slurm's, taken so often by others."),
    ] = None,
    policies: Annotated[Path | None, typer.Option(help="JSON: more policies.")] = None,
    history: Annotated[
        str | None,
        typer.Option(help="Your own past: a file of sacct --parsable2, - is stdin; or sacct."),
    ] = None,
    since: Annotated[str, typer.Option(help="What sacct is asked for.")] = "now-30days",
    incidents: Incidents = None,
    least_nodes: LeastNodes = 2,
    plots: Annotated[
        Path | None, typer.Option(help="Folder for pictures of the first seed.")
    ] = None,
    known: Annotated[bool, typer.Option("--list", help="Scenarios, mixes and policies.")] = False,
    noheader: NoHeader = False,
    as_json: AsJson = False,
    context: typer.Context = BY_PYTHON,
) -> None:
    """What failures cost under each policy: WAF, goodput, ETTR, GPU-hours lost by cause."""
    from simulator import library, study  # slow to import
    from unicrond.ctl import past

    shape = Shape(noheader=noheader, as_json=as_json)
    everyone = library.policies(policies)
    if known:
        show(_known(everyone), KNOWN, list(KNOWN), shape)
        return
    if history is not None:
        past.refuse({"--plots": plots, "--runs": runs, "--others-waiting": others_waiting})
        asked = past.Asked(history, since, least_nodes, repair_hours)
        ours = past.ours(incidents, context)
        past.tell(past.answer(asked, ours, study.chosen(everyone, policy or past.USUAL)), shape)
        return
    changes = library.Changes(
        runs=runs, repair_hours=repair_hours, queue=library.slurm_queue(others_waiting)
    )
    told = library.scenario(scenario, changes)
    wanted = study.chosen(everyone, policy or study.USUAL)
    found = study.study(told, wanted, range(seed, seed + seeds))
    answer = study.as_json(found)
    if plots is not None:
        answer["plots"] = _draw(plots, told, wanted, seed)
    if as_json:
        print_json(answer)
    else:
        _tell(answer, shape)


def _known(policies: Any) -> list[dict[str, str]]:
    from simulator import library

    listed = [("scenario", name, library.scenario(name).about) for name in library.SCENARIOS]
    listed += [("runs", name, about) for name, about in library.mixes().items()]
    listed += [("policy", policy.name, policy.about) for policy in policies.values()]
    return [{"kind": kind, "name": name, "about": about} for kind, name, about in listed]


def _draw(folder: Path, scenario: Any, policies: Any, seed: int) -> list[str]:
    from simulator import engine

    try:
        from simulator import plots  # needs matplotlib
    except ImportError:
        raise BadInput("--plots: needs matplotlib in unicronctl's environment") from None
    failures = scenario.failures(seed)
    outcomes = [engine.simulate(scenario.cluster, p, failures, seed, True) for p in policies]
    return [str(path) for path in plots.draw(folder, scenario.name, outcomes)]


def _tell(answer: dict[str, Any], shape: Shape) -> None:
    cluster, seeds = answer["cluster"], answer["seeds"]
    print(f"{answer['scenario']}: {answer['about']}")
    print(
        f"{cluster['gpus']} GPUs for {cluster['hours'] / 24:.3g} days, {len(answer['runs'])} runs, "
        f"repairs of {answer['repair_hours']:.3g} h on average, seeds {seeds[0]} to {seeds[-1]}; "
        "GPU-time lost in % of all\n"
    )
    rows = [{**policy, "all": answer["gpu_hours"]} for policy in answer["policies"]]
    show(rows, POLICIES, [name for name in POLICIES if name not in HIDDEN], shape)
    print("\nSources of every figure: --json. What carries the result: docs/simulator.md.")
    for path in answer.get("plots", ()):
        print(path)


def _ratio(ratio: dict[str, float] | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio['mean']:.3f} ±{ratio['high'] - ratio['mean']:.3f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _lost(policy: Any, cause: str) -> str:
    return f"{100 * policy['gpu_hours'][cause] / policy['all']:.2f}"
