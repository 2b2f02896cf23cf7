"""Pauses of partitions and of kinds of action: nothing of these is carried out while they hold."""

from __future__ import annotations

from unicrond.core.cycle import Cycle
from unicrond.core.state import State
from unicrond.model.decision import Action, ActionKind
from unicrond.model.events import PauseSet
from unicrond.model.pause import MOST_PAUSES, PauseScope, paused

KEPT = frozenset(
    {ActionKind.STOP_RANKS, ActionKind.START_RANKS, ActionKind.PROBE, ActionKind.NOTIFY}
)
"""Kinds that cannot be paused: without them a generation is left half stopped or half started."""
PLAN = "plan"
"""Pauses what plans order, and leaves the same actions to heals and to people."""


def on_pause(cycle: Cycle, event: PauseSet) -> None:
    pause = event.pause
    others = tuple(
        p for p in cycle.state.pauses if (p.scope, p.value) != (pause.scope, pause.value)
    )
    if not event.on and len(others) == len(cycle.state.pauses):
        return
    cycle.set_pauses((*others, pause)[-MOST_PAUSES:] if event.on else others)
    over = f"{pause.scope} {pause.value} is not paused any more, by {pause.who}"
    cycle.note("note", str(pause) if event.on else over)


def why_paused(state: State, action: Action) -> str:
    """Why this action is not carried out now, "" where no pause is in its way."""
    if not state.pauses or action.kind in KEPT:
        return ""
    found = paused(state.pauses, PauseScope.ACTION, action.kind.value)
    node = state.nodes.get(action.node) if action.run_id is None else None
    for partition in node.partitions if node else ():
        found = found or paused(state.pauses, PauseScope.PARTITION, partition)
    return str(found) if found else ""
