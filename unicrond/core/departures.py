"""Nodes that are to go, and it is announced: runs leave them while that costs a restart alone.

    drained by a person, by another program, or by us      leaves now
    a maintenance window begins within leave_before_seconds  leaves now

The rest of the allocation is enough (min_nodes)  ──> the run goes on there, the node is given back
the batch host goes, which a job cannot give back, or too few
are left; free nodes make up for it, and nobody waits for them ──> requeued, off the nodes that go
neither                                           ──> it stays, and the story says so, once
"""

from __future__ import annotations

from dataclasses import replace

from unicrond.core import queued
from unicrond.core.cycle import Cycle
from unicrond.core.guards import drained_by_us, restarts_left
from unicrond.core.state import State
from unicrond.core.trouble import Fault, report
from unicrond.model.cluster import JobState, NodeState
from unicrond.model.incident import IncidentState, Scope, Severity
from unicrond.model.run import Loss, LossState, Run, RunState

KIND = "announced departure"
MOST_RUNS_AT_ONCE = 4  # of one look: a rack that is drained moves its runs one after the other


def look(cycle: Cycle) -> None:
    """After each look at Slurm."""
    moved = 0
    for run in cycle.state.live_runs():
        if moved == MOST_RUNS_AT_ONCE:
            return
        if run.state is RunState.RUNNING and run.healing is None and cycle.state.acts_for(run):
            moved += _leave(cycle, run, announced(cycle.state, run, cycle.now))


def announced(state: State, run: Run, now: float) -> dict[str, str]:
    """The run's nodes that are to go, and why in words."""
    members = run.assignment.nodes if run.assignment else ()
    return {node: why for node in members if (why := _why_it_goes(state, node, now))}


def _why_it_goes(state: State, name: str, now: float) -> str:
    node = state.nodes.get(name)
    if node is None or node.state is NodeState.DOWN:
        return ""  # lost rather than announced
    if node.state is NodeState.DRAINED:
        owner = "us" if drained_by_us(state, name) else node.reason_user or "somebody"
        return f"{name} is drained by {owner} ({node.reason or 'no reason given'})"
    if 0 < node.away_at <= now + state.policy.leave_before_seconds:
        return f"maintenance of {name} begins in {max(0.0, node.away_at - now):.0f} s"
    return ""


def _leave(cycle: Cycle, run: Run, going: dict[str, str]) -> bool:
    job = cycle.state.allocations.get(run.run_id)
    if not going or job is None or job.state is not JobState.RUNNING:
        return False
    if not restarts_left(run, cycle.now, cycle.state.policy):
        return _stays(cycle, run, going, "its restarts of this hour are used up")
    avoid = {*run.shunned, *going}
    rest = [n for n in run.nodes if n in run.agents and n not in avoid]
    # while others wait a requeued run may not get its nodes back: worse than to stay
    alone = not queued.others_wait(cycle.state, job)
    elsewhere = alone and queued.free_nodes(cycle.state, job, avoid) >= run.min_nodes
    if job.batch_host in going and elsewhere:
        _requeue(cycle, run, going)
    elif len(rest) >= run.min_nodes:
        _go_on_without(cycle, run, going)
    elif elsewhere:
        _requeue(cycle, run, going)
    else:
        return _stays(cycle, run, going, "the run has nowhere else to go")
    return True


def _stays(cycle: Cycle, run: Run, going: dict[str, str], why: str) -> bool:
    fresh = [node for node in going if (run.run_id, node) not in cycle.state.staying]
    for node in fresh:
        cycle.state.staying.add((run.run_id, node))
        cycle.note("note", f"{going[node]}; {why}: it stays", run, node=node)
    return False


def _go_on_without(cycle: Cycle, run: Run, going: dict[str, str]) -> None:
    node = next(iter(going))
    shunned = tuple(dict.fromkeys((*run.shunned, *going)))
    run = cycle.put(replace(run, shunned=shunned))
    fault = Fault(
        KIND, Severity.SEV1, Scope.NODE, node, "; ".join(going.values()), cycle.now,
        "slurm.announced", fact=True, sick=True,
    )  # fmt: skip
    report(cycle, run, fault)
    run = cycle.state.runs[run.run_id]
    if run.healing is not None:
        deadline = cycle.now + cycle.state.policy.confirm_timeout_seconds
        left = (
            Loss(n, run.healing.incident_id, cycle.now, deadline, LossState.LEFT) for n in going
        )
        cycle.put(replace(run, losses=(*run.losses, *left)[-64:]))


def _requeue(cycle: Cycle, run: Run, going: dict[str, str]) -> None:
    what = "; ".join(going.values())
    incident = cycle.open_incident(
        KIND, Severity.SEV1, Scope.NODE, run, what, node=next(iter(going))
    )
    cycle.decide(incident, run, "requeue", f"{what}; requeueing run {run.run_id} off it")
    cycle.put_incident(
        replace(cycle.state.incidents[incident.incident_id], state=IncidentState.HEALING)
    )
    queued.order(cycle, run, incident.incident_id, tuple(dict.fromkeys((*run.shunned, *going))))
