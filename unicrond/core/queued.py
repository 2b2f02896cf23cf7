"""A run that waits in Slurm's queue again: the same run, begun at once, off suspects, at the size
that there is room for within what its user allowed.

Who put it there may be we, its agents, Slurm itself (NODE_FAIL), a person, or a program that
requeues itself; Slurm alone would hold it for 120 s each time. A job on hold stays on hold.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from planner.queue import WANTING
from unicrond.core.cycle import Cycle
from unicrond.core.guards import drained_by_us, restarts_left
from unicrond.core.state import State
from unicrond.model.cluster import Allocation, JobState, NodeState
from unicrond.model.decision import ActionKind
from unicrond.model.incident import IncidentState, Scope, Severity
from unicrond.model.run import Healing, HealStep, Run, RunState

SETTLE_SECONDS = 2.0  # sooner a node may refuse the new start for the kill of the old one
LONGEST_SETTLE_SECONDS = 10.0  # Slurm's clock may be ahead of ours
KEPT_SECONDS = 120.0
MOST_KEPT = 4  # runs, whose nodes are kept at a time
HOLDING = ("BeginTime", "None", "")  # Slurm's own reasons; a hold or a dependency is a person's


def order(cycle: Cycle, run: Run, incident_id: int, exclude: tuple[str, ...]) -> None:
    """Has Slurm requeue it, off the nodes that are excluded."""
    run = _waiting(cycle, run, incident_id, exclude)
    run = cycle.put(replace(run, state=RunState.HEALING))
    _keep_nodes(cycle, run, incident_id, exclude)
    cycle.act(incident_id, run, ActionKind.REQUEUE, restarts=run.restarts)


def _keep_nodes(cycle: Cycle, run: Run, incident_id: int, exclude: Collection[str]) -> None:
    """Where the site wants it so, else who waits for nodes is before it. A few runs at once."""
    state, job = cycle.state, cycle.state.allocations.get(run.run_id)
    recent = sum(at > cycle.now - KEPT_SECONDS for at, _ in state.kept)
    if not state.policy.keep_freed_nodes or job is None or recent >= MOST_KEPT:
        return
    known = [n for n in job.nodes if n in state.nodes and n not in exclude]
    nodes = [n for n in known if state.nodes[n].state is NodeState.UP]
    if nodes:
        state.kept.append((cycle.now, run.run_id))
        cycle.act(incident_id, run, ActionKind.RESERVE, user=run.user, nodes=nodes)


def _waiting(cycle: Cycle, run: Run, incident_id: int, exclude: tuple[str, ...]) -> Run:
    now = cycle.now
    deadline = now + cycle.state.policy.requeue_timeout_seconds
    healing = Healing(incident_id, HealStep.REQUEUE, now, deadline, nodes=(), exclude=exclude)
    failures = (*(t for t in run.failures if t > now - 3600), now)
    return cycle.put(replace(run, healing=healing, failures=failures))


def adopt(cycle: Cycle, run: Run, allocation: Allocation) -> None:
    """Somebody else requeued it: that is not its end, and it need not wait."""
    if run.healing is not None:
        return
    what = f"the job was put back into Slurm's queue (restart {allocation.restarts}), not by us"
    incident = cycle.incident_of(run)
    if incident is None:
        incident = cycle.open_incident("requeued", Severity.SEV2, Scope.RUN, run, what)
    cycle.decide(incident, run, "start now", f"{what}; Slurm alone would hold it for two minutes")
    if not cycle.state.acts_for(run) or not restarts_left(run, cycle.now, cycle.state.policy):
        return
    cycle.put_incident(
        replace(cycle.state.incidents[incident.incident_id], state=IncidentState.HEALING)
    )
    _waiting(cycle, run, incident.incident_id, run.shunned)


def advance(cycle: Cycle, run: Run, healing: Healing) -> None:
    """Has Slurm begin it, and once more whenever another size has become the right one."""
    job = cycle.state.allocations.get(run.run_id)
    if job is None or job.state is not JobState.PENDING:
        return
    exclude = tuple(n for n in healing.exclude if not _is_well(cycle.state, run, healing, n))
    nodes = nodes_to_ask_for(cycle.state, run, job, exclude)
    if job.restarts > healing.expedited:
        due = _may_begin(cycle, job, healing)
    else:
        changed = nodes > 0 or exclude != healing.exclude
        due = changed and _may_resize(cycle, job, healing)
    if not due:
        return
    expedited = replace(healing, expedited=job.restarts, expedited_at=cycle.now, exclude=exclude)
    run = cycle.put(replace(run, healing=expedited))
    # an exclusion outlives the repair of its node, a drain does not: so only where none holds
    told = [n for n in exclude if not drained_by_us(cycle.state, n)]
    cycle.act(healing.incident_id, run, ActionKind.EXPEDITE, exclude=told, nodes=nodes)


def _is_well(state: State, run: Run, healing: Healing, name: str) -> bool:
    """A node that was to be avoided, and need not be any more: we gave it back after its probes, or
    it was only to go, and somebody thought better of it."""
    if any(node == name and at > healing.since for at, node in state.returns):
        return True
    node = state.nodes.get(name)
    stays = node is not None and node.state is NodeState.UP and not node.reason and not node.away_at
    return stays and name not in run.shunned and run.loss_of(name) is None


def _may_begin(cycle: Cycle, job: Allocation, healing: Healing) -> bool:
    settled = min(job.submit_time + SETTLE_SECONDS, healing.since + LONGEST_SETTLE_SECONDS)
    return job.reason in HOLDING and cycle.now >= settled


def _may_resize(cycle: Cycle, job: Allocation, healing: Healing) -> bool:
    """It waits for nodes, as a look at Slurm shows that is newer than our last word on it."""
    seen = cycle.state.snapshot_at > healing.expedited_at + SETTLE_SECONDS
    return job.reason in WANTING and seen


def nodes_to_ask_for(state: State, run: Run, job: Allocation, avoid: Collection[str]) -> int:
    """As many as are free, from `min_nodes` to `max_nodes`, and no more than before while others
    wait for nodes; 0: what it asks for may stay."""
    known = (state.nodes[name].gpus for name in run.nodes if name in state.nodes)
    gpus = max(known, default=0)
    if not gpus:
        return 0
    asked = job.gpus // gpus
    most = min(run.max_nodes, asked) if others_wait(state, job) else run.max_nodes
    free = free_nodes(state, job, {*avoid, *run.shunned}, gpus)
    wanted = min(free, most)
    return wanted if wanted != asked and wanted >= run.min_nodes else 0


def free_nodes(state: State, job: Allocation, avoid: Collection[str], gpus: int = 1) -> int:
    """That the job could start on, its own of now included."""
    others = (o for o in state.allocations.values() if o.state.live and o.job_id != job.job_id)
    busy = {name for other in others for name in other.nodes}
    partitions = set(job.partition.split(","))  # that it may start in
    return sum(
        node.state is NodeState.UP
        and node.gpus >= gpus
        and not partitions.isdisjoint(node.partitions)
        for name, node in state.nodes.items()
        if name not in busy and name not in avoid
    )


def others_wait(state: State, job: Allocation) -> bool:
    """Whether Slurm may give nodes that it gives back to somebody else."""
    return any(
        other.state is JobState.PENDING
        and other.job_id != job.job_id
        and other.partition == job.partition
        and other.reason in WANTING
        for other in state.allocations.values()
    )
