"""A node that we drained because it was lost, and that is there again: probed, then given back.

    heard by Slurm again, held by no job ──> probed, again and again, for a time ──> resumed
    any probe fails, or Slurm hears it no longer ──> from the beginning

The time is `return_settle_seconds`, four times that after a second drain within a day, and
`quarantine_seconds` after a third. Nodes drained for their hardware, and whatever bears another's
reason, are a person's. So many an hour, and only in mode active.
"""

from __future__ import annotations

from dataclasses import replace

from unicrond.core.cycle import Cycle
from unicrond.core.guards import OUR_REASON, drain_incident
from unicrond.core.state import Return, State
from unicrond.model.cluster import Node, NodeState
from unicrond.model.decision import Action, ActionKind, Mode, Outcome, OutcomeState

LOST = f"{OUR_REASON}lost connection incident="
PROBE_EVERY_SECONDS = 5.0
FEWEST_PROBES = 3
LEMON_WITHIN_SECONDS = 86_400.0


def look(cycle: Cycle) -> None:
    """After each look at Slurm."""
    state = cycle.state
    back = {n: node for n, node in state.nodes.items() if _is_back(node)}
    held = {n for job in state.allocations.values() if job.state.live for n in job.nodes}
    for name in tuple(state.returning):
        if name not in back or name in held:
            del state.returning[name]
    if state.mode is not Mode.ACTIVE:
        return
    for name, node in back.items():
        if name not in held:
            _further(cycle, node, state.returning.setdefault(name, Return(cycle.now)))


def _is_back(node: Node) -> bool:
    silent = "NOT_RESPONDING" in node.raw_state or "*" in node.raw_state
    drained = node.state is NodeState.DRAINED or "DRAIN" in node.raw_state
    return drained and not silent and node.reason.startswith(LOST)


def settle_seconds(state: State, node: str, now: float) -> float:
    """For how long it must be well, by how often it was lost within a day."""
    times = sum(n == node and at > now - LEMON_WITHIN_SECONDS for at, n in state.drains)
    policy = state.policy
    if times >= 3:
        return policy.quarantine_seconds
    return policy.return_settle_seconds * (4 if times == 2 else 1)


def returns_left(state: State, now: float) -> bool:
    """Whether one more node may be given back within the hour."""
    return sum(at > now - 3600 for at, _ in state.returns) < state.policy.returns_per_hour


def _further(cycle: Cycle, node: Node, back: Return) -> None:
    state, incident = cycle.state, drain_incident(cycle.state, node.name)
    if back.waiting:
        return
    settled = cycle.now >= back.since + settle_seconds(state, node.name, cycle.now)
    if settled and back.passed >= FEWEST_PROBES and returns_left(state, cycle.now):
        state.returning[node.name] = replace(back, waiting=True)
        cycle.act(incident, None, ActionKind.RESUME, node.name, reason=node.reason)
    elif cycle.now >= back.asked_at + PROBE_EVERY_SECONDS:
        state.returning[node.name] = replace(back, waiting=True, asked_at=cycle.now)
        cycle.act(incident, None, ActionKind.PROBE, node.name)


def on_outcome(cycle: Cycle, action: Action, outcome: Outcome) -> None:
    back = cycle.state.returning.get(action.node)
    if back is None or action.kind not in (ActionKind.PROBE, ActionKind.RESUME):
        return
    done = outcome.state is OutcomeState.DONE
    if action.kind is ActionKind.RESUME:
        del cycle.state.returning[action.node]
        if done:
            cycle.state.returns.append((cycle.now, action.node))
    elif done and outcome.data.get("passed"):
        cycle.state.returning[action.node] = replace(back, waiting=False, passed=back.passed + 1)
    else:
        cycle.state.returning[action.node] = Return(cycle.now, asked_at=back.asked_at)
