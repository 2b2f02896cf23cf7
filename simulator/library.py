"""Input files: scenarios, mixes of runs, models, policies. The bundled ones are in `data`.

Reads files. Everything wrong with one is a BadInput that names the field.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError

from planner.objective import Transition
from simulator import laws
from simulator.kinds import KINDS, Method
from simulator.model import (
    DAY,
    HOUR,
    SECOND,
    Cluster,
    Failure,
    Freed,
    Policy,
    Queue,
    RunSpec,
    Timing,
)
from simulator.parts import (
    FailuresPart,
    KnownModel,
    Part,
    PolicyPart,
    RunPart,
    ScenarioPart,
)
from simulator.rules import RULES
from unicrond.errors import BadInput

SCENARIOS = ("trace-a", "trace-b", "gpus-1024", "gpus-16384", "nodes-1024")
MANY = 10  # runs that are named one by one
P = TypeVar("P", bound=Part)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A cluster and its failures: told, or drawn anew for each seed."""

    name: str
    about: str
    cluster: Cluster
    laws: laws.Laws
    told: tuple[Failure, ...] | None
    sources: Mapping[str, str]

    def failures(self, seed: int) -> tuple[Failure, ...]:
        cluster = self.cluster
        if self.told is not None:
            return self.told
        return laws.draw(self.laws, cluster.nodes, cluster.nodes_per_switch, cluster.length, seed)


@dataclass(frozen=True, slots=True)
class Changes:
    """What a caller asks to be different from the file."""

    runs: str | None = None
    repair_hours: float | None = None
    queue: Queue | None = None
    start: str | None = None


def scenario(name: str, changes: Changes | None = None) -> Scenario:
    """A bundled scenario by its name, or one from a file."""
    changes = changes or Changes()
    given = bundled(name) if name in SCENARIOS else _read(Path(name), "scenario")
    part = _parsed(ScenarioPart, given, name)
    if changes.repair_hours is not None:
        repair = part.repair.model_copy(update={"mean_hours": changes.repair_hours})
        part = part.model_copy(update={"repair": repair})
    length = round(part.days * DAY)
    the_laws = _laws(part)
    told = _told(part) if part.failures.events is not None else None
    rate, repair_ms = the_laws.mean_rate(part.cluster.nodes, length), the_laws.repair.mean
    if told is not None:
        rate, repair_ms = laws.mean_of(told, part.cluster.nodes, length)
    queue = part.queue
    cluster = Cluster(
        nodes=part.cluster.nodes,
        gpus=part.cluster.gpus_per_node,
        nodes_per_switch=part.cluster.nodes_per_switch,
        runs=_runs(changes.runs or part.runs, part.cluster.nodes),
        length=length,
        failures_per_node_second=rate * SECOND,
        repair_seconds=repair_ms / SECOND,
        start=changes.start or part.start,
        queue=changes.queue
        or Queue(queue.freed, queue.others_waiting, round(queue.others_hold_hours * HOUR)),
    )
    return Scenario(part.name, part.about, cluster, the_laws, told, part.sources)


def mixes() -> dict[str, str]:
    """What runs are in each bundled mix, in words."""
    known = bundled("mixes")["mixes"]
    return {
        name: ", ".join(f"{run['model']} x {run['weight']:g}" for run in runs)
        if len(runs) < MANY
        else ", ".join(f"{n} of {model}" for model, n in Counter(r["model"] for r in runs).items())
        for name, runs in known.items()
    }


def slurm_queue(others_waiting: float | None) -> Queue | None:
    """Freed nodes are Slurm's to give out; None leaves it to the scenario."""
    return None if others_waiting is None else Queue(Freed.SLURM, others_waiting)


def policies(extra: Path | None = None) -> dict[str, Policy]:
    """By name, the bundled ones and those of a file, which go first."""
    known: dict[str, Any] = {}
    files = [bundled("policies")] + ([_read(extra, "--policies")] if extra else [])
    found: dict[str, Policy] = {}
    for file in files:
        for i, given in enumerate(file.get("policies", [])):
            place = f"policies.{i}"
            like = given.pop("like", None)
            if like is not None and like not in known:
                raise BadInput(f"{place}.like: no policy {like!r} before it")
            base = known.get(like, {})
            sources = {**base.get("sources", {}), **given.get("sources", {})}
            whole = {**base, **given, "sources": sources}
            part = _parsed(PolicyPart, whole, place)
            known[part.name], found[part.name] = whole, _policy(part, place)
    return found


def _policy(part: PolicyPart, place: str) -> Policy:
    if part.rule not in RULES:
        raise BadInput(f"{place}.rule: no rule {part.rule!r}; rules: {', '.join(RULES)}")
    if missing := set(Method) - set(part.detection_seconds):
        raise BadInput(f"{place}.detection_seconds: {sorted(missing)[0]} is missing")
    seconds, redone = part.transition_seconds.model_dump(), part.redone_seconds
    retry, start = seconds.pop("retry"), seconds.pop("start") + redone
    change = Transition(**{kind: taken + redone for kind, taken in seconds.items()})
    return Policy(
        part.name, part.about, part.rule, Timing(part.detection_seconds, change, start, retry),
        part.healthy_percent, part.keeps_failed, part.foresees, part.floors, part.margin,
        part.sources,
    )  # fmt: skip


def _laws(part: ScenarioPart) -> laws.Laws:
    failures, repair = part.failures, part.repair
    if failures.shares is not None:
        _check_shares(failures, failures.shares)
    between = None
    if failures.per_1000_node_days:
        mean = 1000 * DAY / failures.per_1000_node_days
        between = laws.Lasting(failures.law, mean, failures.shape)
    return laws.Laws(
        repair=laws.Lasting(repair.law, repair.mean_hours * HOUR, repair.shape),
        severe=failures.severe,
        others=failures.others,
        between=between,
        switches_per_year=failures.switch_failures_per_year,
        shares=failures.shares,
    )


def _check_shares(failures: FailuresPart, shares: Mapping[str, float]) -> None:
    for kind in shares:
        if kind not in KINDS:
            raise BadInput(f"failures.shares.{kind}: unknown; kinds: {', '.join(KINDS)}")
    if min(shares.values(), default=0) < 0 or not sum(shares.values()):
        raise BadInput("failures.shares: must not be negative, nor all zero")
    severe = [KINDS[kind].severity == 1 for kind, share in shares.items() if share]
    if failures.severe and not any(severe):
        raise BadInput("failures.shares: no kind of severity 1 for failures.severe")
    if failures.others and all(severe):
        raise BadInput("failures.shares: no kind of severity 2 or 3 for failures.others")


def _told(part: ScenarioPart) -> tuple[Failure, ...]:
    told = []
    for i, event in enumerate(part.failures.events or ()):
        place, per_switch = f"failures.events.{i}", part.cluster.nodes_per_switch
        if event.kind not in KINDS:
            raise BadInput(f"{place}.kind: no kind {event.kind!r}; kinds: {', '.join(KINDS)}")
        if (event.node is None) == (event.switch is None):
            raise BadInput(f"{place}: give either node or switch")
        first = event.node if event.node is not None else (event.switch or 0) * per_switch
        if first >= part.cluster.nodes:
            raise BadInput(f"{place}: the cluster has {part.cluster.nodes} nodes, from 0")
        many = per_switch if event.node is None else 1
        nodes = tuple(range(first, min(first + many, part.cluster.nodes)))
        severe = KINDS[event.kind].severity == 1
        hours = event.repair_hours or part.repair.mean_hours
        repair = max(1, round(hours * HOUR)) if severe else 0
        told.append(Failure(round(event.hours * HOUR), nodes, event.kind, repair))
    return tuple(sorted(told, key=lambda failure: failure.at))


def _runs(given: str | list[RunPart], nodes: int) -> tuple[RunSpec, ...]:
    if isinstance(given, str):
        known = bundled("mixes")["mixes"]
        if given not in known:
            raise BadInput(f"runs: no mix {given!r}; mixes: {', '.join(sorted(known))}")
        given = [_parsed(RunPart, run, f"mixes.{given}") for run in known[given]]
    if len({run.id for run in given}) != len(given):
        raise BadInput("runs: two runs have the same id")
    if (begin := sum(run.nodes or 0 for run in given if not run.arrives_hours)) > nodes:
        raise BadInput(f"runs: they begin with {begin} nodes, the cluster has {nodes}")
    return tuple(_run(run, nodes, f"runs.{i}") for i, run in enumerate(given))


def _run(run: RunPart, nodes: int, place: str) -> RunSpec:
    models = bundled("models")["models"]
    if (run.model is None) == (run.throughput is None):
        raise BadInput(f"{place}: give either model or throughput")
    if run.model is not None and run.model not in models:
        raise BadInput(f"{place}.model: no model {run.model!r}; models: {', '.join(models)}")
    known = _parsed(KnownModel, models[run.model], run.model) if run.model else None
    part = known.throughput if known else run.throughput
    assert part is not None
    flops = part.flops(nodes)
    flops[0] = np.nan
    if np.isnan(flops).all():
        raise BadInput(f"{place}: it has no legal size on {nodes} nodes")
    if run.nodes and (run.nodes > nodes or np.isnan(flops[run.nodes])):
        raise BadInput(f"{place}.nodes: {run.nodes} is no legal size on {nodes} nodes")
    return RunSpec(
        run_id=run.id,
        name=run.model or f"run {run.id}",
        flops=flops,
        weight=run.weight,
        parameters=run.parameters or (known.parameters if known else 1.0),
        start_nodes=run.nodes,
        arrives=round(run.arrives_hours * HOUR),
        work=run.work_flop,
    )


def _parsed(kind: type[P], given: object, place: str) -> P:
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(step) for step in first["loc"])
        raise BadInput(f"{place}: {field}: {first['msg']}") from None


def bundled(name: str) -> Any:
    """What a file of `data` holds."""
    return json.loads(resources.files("simulator").joinpath("data", f"{name}.json").read_text())


def _read(path: Path, option: str) -> Any:
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        known = f"; bundled: {', '.join(SCENARIOS)}" if option == "scenario" else ""
        raise BadInput(f"{option}: cannot read {path}: {error.strerror}{known}") from None
    except ValueError as error:
        raise BadInput(f"{option}: {path} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadInput(f"{option}: {path} must hold a JSON object")
    return found
