"""`unicronctl simulate --history`: what other policies would have saved of a site's own past."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from simulator.engine import Outcome, simulate
from simulator.history import Fault, Past, Told, past
from simulator.model import HOUR, Cause, Policy
from unicrond.ctl.client import Client
from unicrond.ctl.show import Columns, Shape, print_json, show, when
from unicrond.errors import BadInput
from unicrond.slurm import accounting

USUAL = (
    "unicron", "unicron-today", "slurm-requeue", "megatron", "varuna", "oobleck", "bamboo",
    "oracle",
)  # fmt: skip
REPAIR_HOURS = 24.0
HOUR_SECONDS = 3600.0
LARGEST_BYTES = 512 << 20
COLUMNS: Columns = {
    "policy": lambda p: p["name"],
    "lost": lambda p: _hours(p["lost_gpu_hours"]),
    "saved": lambda p: _hours(p["saved_gpu_hours"]),
    "%": lambda p: "" if p["saved_percent"] is None else f"{p['saved_percent']:.0f}",
    "detection": lambda p: _hours(p["gpu_hours"]["detection"]),
    "transition": lambda p: _hours(p["gpu_hours"]["transition"]),
    "waiting": lambda p: _hours(p["gpu_hours"]["waiting"]),
    "changes": lambda p: p["changes"],
}


@dataclass(frozen=True, slots=True)
class Asked:
    history: str
    since: str
    least_nodes: int
    repair_hours: float | None


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


Time = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Incident(_Part):
    """As `unicronctl incidents --all --json` prints it."""

    severity: str
    run_id: int | None
    opened_at: Time
    first_signal_at: Time = 0.0
    closed_at: Time = 0.0
    root_node: str = ""
    scope: str = ""


class _Run(_Part):
    run_id: int
    weight: Annotated[float, Field(gt=0)] = 1.0
    min_nodes: Annotated[int, Field(ge=1)] = 1


class Ours(_Part):
    incidents: list[_Incident]
    runs: list[_Run] = []


def answer(asked: Asked, ours: Ours | None, policies: Sequence[Policy]) -> dict[str, Any]:
    """Raises BadInput that names the line and the field."""
    told = {run.run_id: Told(run.weight, run.min_nodes) for run in ours.runs} if ours else {}
    faults = list(_faults(ours.incidents)) if ours else None
    spells = accounting.parse(_text(asked), asked.history)
    found = past(spells, faults, told, asked.least_nodes, asked.repair_hours or REPAIR_HOURS)
    return {
        "runs": len(found.cluster.runs),
        "nodes": found.cluster.nodes,
        "gpus": found.cluster.nodes * found.cluster.gpus,
        "began": found.began,
        "hours": found.cluster.length / HOUR,
        "failures": len(found.failures),
        "lost_nodes": sum(failure.repair > 0 for failure in found.failures),
        "happened_gpu_hours": {
            name: seconds / HOUR_SECONDS for name, seconds in asdict(found.happened).items()
        },
        "lost_gpu_hours": found.happened.lacked / HOUR_SECONDS,
        "policies": [_policy(found, _played(found, policy)) for policy in policies],
        "gaps": list(found.gaps),
    }


def refuse(given: Mapping[str, object]) -> None:
    for name, value in given.items():
        if value is not None:
            raise BadInput(f"{name}: says nothing of a past; leave it out beside --history")


def _played(found: Past, policy: Policy) -> Outcome:
    """A run's first start is part of what it did, so it costs nothing again."""
    timing = replace(policy.timing, first=0.0)
    return simulate(found.cluster, replace(policy, timing=timing), found.failures)


def _policy(found: Past, outcome: Outcome) -> dict[str, Any]:
    happened, lost = found.happened.lacked / HOUR_SECONDS, outcome.ledger.lacked / HOUR
    return {
        "name": outcome.policy.name,
        "about": outcome.policy.about,
        "sources": dict(outcome.policy.sources),
        "lost_gpu_hours": lost,
        "saved_gpu_hours": happened - lost,
        "saved_percent": 100 * (1 - lost / happened) if happened else None,
        "gpu_hours": {str(cause): outcome.spent[cause] / HOUR for cause in Cause},
        "changes": outcome.changes,
    }


def _text(asked: Asked) -> str:
    if asked.history == "sacct":
        return accounting.ask(asked.since)
    return _read(asked.history, "--history").decode(errors="replace")


def _read(path: str, option: str) -> bytes:
    try:
        if path == "-":
            found = sys.stdin.buffer.read(LARGEST_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                found = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{option}: cannot read {path}: {error.strerror}") from None
    if len(found) > LARGEST_BYTES:
        raise BadInput(f"{option}: {path} is larger than {LARGEST_BYTES >> 20} MiB")
    return found


def ours(source: str | None, context: typer.Context) -> Ours | None:
    """What unicrond knows, or a file; raises BadInput that names the place in it."""
    if source is None:
        return None
    if source == "unicrond":
        client = Client(context.obj)
        given: object = {name: client.items(f"/{name}") for name in ("incidents", "runs")}
    else:
        given = _json(source)
    try:
        return Ours.model_validate({"incidents": given} if isinstance(given, list) else given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(step) for step in first["loc"])
        raise BadInput(f"--incidents: {place or 'the whole'}: {first['msg']}") from None


def _json(path: str) -> object:
    try:
        found: object = json.loads(_read(path, "--incidents"))
    except ValueError as error:
        raise BadInput(f"--incidents: {path} is no JSON: {error}") from None
    return found


def _faults(incidents: Iterable[_Incident]) -> Iterable[Fault]:
    for i in incidents:
        if i.run_id is not None and i.severity in ("SEV1", "SEV2", "SEV3"):
            at = i.first_signal_at or i.opened_at
            until = max(at, i.closed_at) if i.closed_at else None
            yield Fault(i.run_id, at, until, int(i.severity[-1]), i.root_node)


def tell(found: Mapping[str, Any], shape: Shape) -> None:
    if shape.as_json:
        print_json(found)
        return
    happened = found["happened_gpu_hours"]
    print(
        f"{found['runs']} runs on {found['nodes']} nodes, {found['gpus']} GPUs, "
        f"{when(found['began'])} and {found['hours'] / 24:.3g} days on; "
        f"{found['failures']} failures, {found['lost_nodes']} of them lost a node\n"
        f"as it happened runs lacked {_hours(found['lost_gpu_hours'])} GPU-hours: "
        f"{_hours(happened['stopped'])} until they were started again, "
        f"{_hours(happened['smaller'])} on fewer nodes, {_hours(happened['standing'])} standing "
        f"still, {_hours(happened['again'])} for work done again\n"
    )
    show(found["policies"], COLUMNS, list(COLUMNS), shape)
    print("\nGPU-hours that runs lacked; what the data do not say:")
    for gap in found["gaps"]:
        print(f"- {gap}")


def _hours(hours: float) -> str:
    return f"{hours:.1f}"
