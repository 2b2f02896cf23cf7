"""How orders end, and what fences them: generations and members. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from unicrond.link.frames import Body
from unicrond.model.decision import OutcomeState
from unicrond.model.run import Assignment, Slot


@dataclass(frozen=True, slots=True)
class Result:
    """How an order ended here."""

    state: OutcomeState
    detail: str = ""
    data: Body = field(default_factory=dict)


def done(**data: object) -> Result:
    return Result(OutcomeState.DONE, "", data)


def failed(detail: str) -> Result:
    return Result(OutcomeState.FAILED, detail)


def refused(detail: str) -> Result:
    return Result(OutcomeState.REFUSED, detail)


def why_not_start(new: Assignment, order: str, generation: int, stopped_generation: int) -> str:
    """The fence: empty when `new` may start here after `generation` under `order`."""
    if new.generation == generation and new.order != order:
        return f"generation {generation} runs here already, under order {order}"
    if new.generation < generation or new.generation <= stopped_generation:
        newest = max(generation, stopped_generation)
        return f"generation {new.generation} is over here: {newest} is the newest known"
    return ""


def to_start(mine: Iterable[Slot], running: Mapping[str, Slot]) -> tuple[list[Slot], str]:
    """Which of this node's slots need a process, or why the rest cannot stay. A member that runs
    already is left alone if it holds the very same place."""
    named = {slot.member: slot for slot in mine}
    for member, slot in running.items():
        if member not in named:
            return [], f"member {member} runs here and is not part of it: stop it first"
        if named[member] != slot:
            return [], f"member {member} is rank {slot.rank} and cannot become another one yet"
    return [slot for member, slot in named.items() if member not in running], ""
