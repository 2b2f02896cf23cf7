"""Nodes that a run holds and does not use come into it, where its ranks regroup.

    idle ──> prepared ──> in the next generation
               │ the others train on meanwhile; then they are held for a moment, and all are kept
               └──> given up: not ready in time, or something failed meanwhile

So a node whose ranks died follows the others, which went on without it; and one that came back.
"""

from __future__ import annotations

from dataclasses import replace

from transition.membership import Choice, Trouble, assign, keepable, legal_size
from unicrond.core import changeover
from unicrond.core.cycle import Cycle
from unicrond.core.guards import avoided, restarts_left, unreachable
from unicrond.model.cluster import NodeState
from unicrond.model.decision import Action, ActionKind, Alternative, Outcome, OutcomeState
from unicrond.model.incident import IncidentState, Scope, Severity
from unicrond.model.run import HealStep, Joining, LossState, Phase, Run, RunState, Slot

KIND = "joining"  # of the incident that tells its story
MOST_AN_HOUR = 3  # of one node: whose ranks fail again and again is left out
WEIGHED = (
    Alternative("grow", True, "all pause for a moment; the train step that it strikes is redone"),
    Alternative("wait", False, "the nodes stay idle until the next failure"),
)
_IDLE = (Phase.IDLE, Phase.BROKEN)
_BACK = (LossState.RETURNED, LossState.UNCONFIRMED)


def advance(cycle: Cycle, run: Run) -> None:
    """Prepares ranks on idle nodes; takes them in once they all wait."""
    joining = run.joining
    if joining is None:
        _consider(cycle, run)
    elif why := _why_in_vain(cycle, run, joining):
        _give_up(cycle, run, joining, why)
    elif all(_waits(run, slot) for slot in joining.assignment.slots if slot.node in joining.nodes):
        _take_in(cycle, run, joining)


def _consider(cycle: Cycle, run: Run) -> None:
    nodes = _idle_nodes(cycle, run) if _is_at_peace(cycle, run) else ()
    if not nodes or run.assignment is None or not _all_regroup(run):
        return
    what = f"{','.join(nodes)} can join run {run.run_id}"
    incident = cycle.open_incident(KIND, Severity.NONE, Scope.NODES, run, what, node=nodes[0])
    incident = cycle.put_incident(replace(incident, state=IncidentState.HEALING))
    number, generation = incident.incident_id, run.generation + 1
    everyone = (*run.assignment.nodes, *nodes)
    new = assign(run, generation, f"u:{number}.{generation}", everyone, run.assignment.slots)
    deadline = cycle.now + cycle.state.policy.prepare_timeout_seconds
    run = cycle.put(replace(run, joining=Joining(number, nodes, new, deadline)))
    reason = f"{what}: ranks are prepared there while the others train on"
    cycle.decide(incident, run, "grow", reason, WEIGHED)
    for node in nodes:
        cycle.state.joins.append((cycle.now, run.run_id, node))
        cycle.act(number, run, ActionKind.PREPARE_RANKS, node, assignment=new)


def _is_at_peace(cycle: Cycle, run: Run) -> bool:
    """It came further in this generation, and nothing is wrong."""
    if run.state is not RunState.RUNNING or run.healing is not None or not run.assignment:
        return False
    if not cycle.state.acts_for(run) or run.finished_code is not None:
        return False
    came_further = run.iteration > run.generation_iteration or run.counted > 0
    budget = restarts_left(run, cycle.now, cycle.state.policy)
    return came_further and budget and cycle.incident_of(run) is None


def _all_regroup(run: Run) -> bool:
    nodes = run.assignment.nodes if run.assignment else ()
    connected = [n for n in nodes if n in run.agents and run.agents[n].connected]
    kept = keepable(run, Trouble(""), connected)
    return run.assignment is not None and len(kept) == run.assignment.world_size


def _idle_nodes(cycle: Cycle, run: Run) -> tuple[str, ...]:
    """Of the job, with an agent that has no rank, up to the size that was asked for."""
    members = run.assignment.nodes if run.assignment else ()
    room = run.max_nodes - len(members)
    if room <= 0 or len(run.nodes) <= len(members):
        return ()
    bad = {*members, *run.shunned, *avoided(cycle.state, run)}
    bad.update(n for n, node in cycle.state.nodes.items() if node.state is not NodeState.UP)
    idle = tuple(n for n in run.nodes if n not in bad and _is_idle(cycle, run, n))[:room]
    return idle[: max(0, legal_size(run, len(members) + len(idle)) - len(members))]


def _is_idle(cycle: Cycle, run: Run, node: str) -> bool:
    view, loss = run.agents.get(node), run.loss_of(node)
    if view is None or not view.connected or view.phase not in _IDLE:
        return False
    if any((a.run_id, a.node) == (run.run_id, node) for a, _ in cycle.state.pending.values()):
        return False
    gone = view.phase is Phase.IDLE or view.stopped_generation >= view.generation
    back = loss is None or loss.state in _BACK
    tries = cycle.state.joins
    often = sum(at > cycle.now - 3600 and (job, n) == (run.run_id, node) for at, job, n in tries)
    return gone and back and often < MOST_AN_HOUR


def _waits(run: Run, slot: Slot) -> bool:
    view = run.agents.get(slot.node)
    return view is not None and slot.member in view.prepared


def _why_in_vain(cycle: Cycle, run: Run, joining: Joining) -> str:
    if run.generation + 1 != joining.assignment.generation or run.healing is not None:
        return "the run changed meanwhile"
    if not unreachable(cycle.state, run, cycle.now).isdisjoint(joining.nodes):
        return "an agent went away"
    if cycle.now > joining.deadline:
        return "its ranks were not ready in time"
    return "" if cycle.state.acts_for(run) else "the run may not be changed now"


def _give_up(cycle: Cycle, run: Run, joining: Joining, why: str) -> None:
    number = joining.incident_id
    run = cycle.put(replace(run, joining=None))
    cycle.supersede(run, frozenset({ActionKind.PREPARE_RANKS}), why)
    if run.healing is None:  # else that stops them
        past = run.generation - 1
        for node in joining.nodes:
            cycle.act(number, run, ActionKind.STOP_RANKS, node, generation=max(0, past))
    cycle.close_incident(number, IncidentState.CLOSED, f"{','.join(joining.nodes)}: {why}")


def _take_in(cycle: Cycle, run: Run, joining: Joining) -> None:
    assert run.assignment is not None
    kept = keepable(run, Trouble(""), run.assignment.nodes)
    nodes = (*run.assignment.nodes, *joining.nodes)
    reason = (
        f"ranks wait on {','.join(joining.nodes)}; {len(kept)} of {run.assignment.world_size} "
        f"ranks keep their processes; growing run {run.run_id} to {len(nodes)} nodes"
    )
    incident = cycle.state.incidents[joining.incident_id]
    cycle.decide(incident, run, "grow", reason, WEIGHED)
    run = cycle.put(replace(run, joining=None, state=RunState.HEALING))
    trouble = Trouble("", joining=joining.nodes)
    choice = Choice(HealStep.HOLD, nodes, kept, run.shunned, reason, WEIGHED)
    changeover.begin(cycle, run, joining.incident_id, trouble, choice)


def on_outcome(cycle: Cycle, run: Run, action: Action, outcome: Outcome) -> None:
    """A node that cannot prepare ranks joins nobody."""
    joining = run.joining
    if joining is None or action.kind is not ActionKind.PREPARE_RANKS:
        return
    if outcome.key.incident_id == joining.incident_id and outcome.state is not OutcomeState.DONE:
        _give_up(cycle, run, joining, f"{action.node}: {outcome.detail}")
