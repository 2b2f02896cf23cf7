"""Nodes that a person asks to be drained, or given back: done in every mode, once, and told.

Only a drain of ours can be undone, and what bears somebody else's reason is left alone: Slurm's
port refuses both. Whether runs leave the node then is for departures.py to say.
"""

from __future__ import annotations

from unicrond.core.cycle import Cycle
from unicrond.core.guards import OUR_REASON
from unicrond.core.state import State
from unicrond.model.decision import Action, ActionKind
from unicrond.model.events import NodeAsked
from unicrond.model.incident import Scope, Severity

ASKED = "asked by a person"  # the kind of incident that such an action hangs on


def on_asked(cycle: Cycle, event: NodeAsked) -> None:
    node = cycle.state.nodes.get(event.node)
    what = f"{event.who} asks to {'drain' if event.drain else 'resume'} {event.node}"
    if node is None:
        cycle.note("note", f"{what}: Slurm does not list it", node=event.node)
        return
    incident = cycle.open_incident(
        ASKED, Severity.NONE, Scope.NODE, None, what, node=event.node
    ).incident_id
    if event.drain:
        reason = f"{OUR_REASON}{what} incident={incident}"
        cycle.act(incident, None, ActionKind.DRAIN, event.node, reason=reason)
    else:
        cycle.act(incident, None, ActionKind.RESUME, event.node, reason=node.reason)


def is_asked(state: State, action: Action) -> bool:
    incident = state.incidents.get(action.key.incident_id)
    return action.run_id is None and incident is not None and incident.kind == ASKED
