"""What goes over the pipe to the worker and back: a line of JSON each way."""

from __future__ import annotations

from dataclasses import dataclass

from unicrond.model.decision import Alternative
from unicrond.model.events import PlannedRun
from unicrond.planning.triggers import Trigger


@dataclass(frozen=True, slots=True)
class Ask:
    """Learn, and propose: without triggers only what would move a run. `at`: Unix seconds, the
    loop's clock."""

    at: float
    triggers: tuple[Trigger, ...] = ()


@dataclass(frozen=True, slots=True)
class Fact:
    """`doc` is JSON."""

    kind: str
    subject: str
    doc: str


@dataclass(frozen=True, slots=True)
class Plan:
    """`doc` is JSON; `runs`: all, as today's plan has them."""

    choice: str
    reason: str
    alternatives: tuple[Alternative, ...]
    doc: str
    runs: tuple[PlannedRun, ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """Of the story: what became of a plan."""

    text: str
    run_id: int
    incident_id: int
    node: str = ""
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """`facts`: only those that changed. `trouble`: why there is nothing else."""

    facts: tuple[Fact, ...] = ()
    lines: tuple[Line, ...] = ()
    plan: Plan | None = None
    trouble: str = ""
