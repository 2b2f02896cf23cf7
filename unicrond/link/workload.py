"""What a run computes, as its agents tell it: `workload` of a registration. Pure."""

from __future__ import annotations

from dataclasses import replace

from unicrond.errors import ProtocolError
from unicrond.link import fields
from unicrond.link.frames import Body
from unicrond.model.workload import PLAIN, BatchScaling, Layout, Workload

MOST_FLOPS = 1e30
MOST_LAYOUTS = 64
MOST_OF_A_LAYOUT = 1024
MOST_MICRO_BATCHES = 10**6


def workload_to(workload: Workload, workers: int) -> Body:
    return {
        "flops_per_iteration": workload.flops_per_iteration,
        "scaling": workload.scaling.value,
        "micro_batches": workload.micro_batches,
        "parameters": workload.parameters,
        "layouts": [[layout.tensor, layout.pipeline] for layout in workload.layouts],
        "workers": workers,
    }


def workload_from(body: Body) -> Workload:
    """Of an agent that tells none: a plain script's."""
    told = fields.mapping(body, "workload")
    if not told:
        return PLAIN
    try:
        scaling = BatchScaling(fields.text(told, "scaling", 100))
    except ValueError as error:
        raise ProtocolError(f"`scaling`: {error}") from error
    workload = Workload(
        flops_per_iteration=fields.number(told, "flops_per_iteration", high=MOST_FLOPS),
        scaling=scaling,
        micro_batches=fields.integer(told, "micro_batches", 0, MOST_MICRO_BATCHES),
        parameters=fields.number(told, "parameters", high=MOST_FLOPS),
        workers=fields.integer(told, "workers", 0, 65_536),
    )
    return replace(workload, layouts=_layouts(told.get("layouts")))


def _layouts(value: object) -> tuple[Layout, ...]:
    if type(value) is not list or not 1 <= len(value) <= MOST_LAYOUTS:
        raise ProtocolError(f"`layouts` is not a list of 1 to {MOST_LAYOUTS}")
    return tuple(map(_layout, value))


def _layout(value: object) -> Layout:
    if type(value) is not list or len(value) != 2:
        raise ProtocolError("a layout is not [tensor, pipeline]")
    body = dict(zip(("tensor", "pipeline"), value, strict=True))
    return Layout(
        fields.integer(body, "tensor", 1, MOST_OF_A_LAYOUT),
        fields.integer(body, "pipeline", 1, MOST_OF_A_LAYOUT),
    )
