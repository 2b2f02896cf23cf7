"""How orders end, and what fences them: generations and members. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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


def divide(
    new: Assignment, mine: Sequence[Slot], running: Mapping[str, Slot], regrouping: Collection[str]
) -> tuple[list[Slot], list[Slot], str]:
    """This node's slots whose members are kept, those that need a process, or why neither.

    The id of a new member begins with the order that makes it; so a member that ended, or whose
    agent was replaced, is never started again under the same id.
    """
    kept, fresh = [], []
    if len({slot.member for slot in mine}) < len(mine):
        return [], [], "a member is named twice"
    for slot in mine:
        if slot.member.rpartition(".")[0] == new.order and slot.member not in running:
            fresh.append(slot)
        elif why := _why_not_keep(slot, running.get(slot.member), regrouping):
            return [], [], f"member {slot.member} cannot be kept: {why}"
        else:
            kept.append(slot)
    return kept, fresh, ""


def _why_not_keep(slot: Slot, now: Slot | None, regrouping: Collection[str]) -> str:
    if now is None:
        return f"it does not run on {slot.node}"
    if now.local_rank != slot.local_rank:
        return f"it holds the GPU of local rank {now.local_rank}, not of {slot.local_rank}"
    if slot.member not in regrouping:
        return "it takes no orders over the rank socket"
    return ""
