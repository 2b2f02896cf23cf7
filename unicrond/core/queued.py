"""A run that waits in Slurm's queue again: the same run, begun at once, off suspects, at the size
that there is room for within what its user allowed.

Who put it there may be we, its agents, Slurm itself (NODE_FAIL), a person, or a program that
requeues itself; Slurm alone would hold it for 120 s each time. A job on hold stays on hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from unicrond.core.cycle import Cycle
from unicrond.core.guards import drained_by_us, restarts_left
from unicrond.core.state import State
from unicrond.model.cluster import Allocation, JobState, NodeState
from unicrond.model.decision import ActionKind
from unicrond.model.incident import IncidentState, Scope, Severity
from unicrond.model.run import Healing, HealStep, Run

SETTLE_SECONDS = 2.0  # sooner a node may refuse the new start for the kill of the old one
LONGEST_SETTLE_SECONDS = 10.0  # Slurm's clock may be ahead of ours
HOLDING = ("BeginTime", "None", "")  # Slurm's own reasons; a hold or a dependency is a person's


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
    now, policy = cycle.now, cycle.state.policy
    cycle.put_incident(
        replace(cycle.state.incidents[incident.incident_id], state=IncidentState.HEALING)
    )
    healing = Healing(
        incident.incident_id,
        HealStep.REQUEUE,
        now,
        now + policy.requeue_timeout_seconds,
        nodes=(),
        exclude=run.shunned,
    )
    failures = (*(t for t in run.failures if t > now - 3600), now)
    cycle.put(replace(run, healing=healing, failures=failures))


def advance(cycle: Cycle, run: Run, healing: Healing) -> None:
    """Has Slurm begin it, once for each time that it comes to wait."""
    job = cycle.state.allocations.get(run.run_id)
    if job is None or job.state is not JobState.PENDING or job.restarts <= healing.expedited:
        return
    settled = min(job.submit_time + SETTLE_SECONDS, healing.since + LONGEST_SETTLE_SECONDS)
    if job.reason not in HOLDING or cycle.now < settled:
        return
    run = cycle.put(replace(run, healing=replace(healing, expedited=job.restarts)))
    # an exclusion outlives the repair of its node, a drain does not: so only where none holds
    exclude = [n for n in healing.exclude if not drained_by_us(cycle.state, n)]
    nodes = nodes_to_ask_for(cycle.state, run, job, healing.exclude)
    cycle.act(healing.incident_id, run, ActionKind.EXPEDITE, exclude=exclude, nodes=nodes)


def nodes_to_ask_for(state: State, run: Run, job: Allocation, avoid: Iterable[str]) -> int:
    """As many as are free, from `min_nodes` to `max_nodes`; 0: what it asks for is right.

    No more than before while others wait for nodes.
    """
    known = (state.nodes[name].gpus for name in run.nodes if name in state.nodes)
    gpus = max(known, default=0)
    if not gpus:
        return 0
    asked = job.gpus // gpus
    most = min(run.max_nodes, asked) if _others_wait(state, job) else run.max_nodes
    wanted = min(max(_free(state, job, gpus, {*avoid, *run.shunned}), run.min_nodes), most)
    return wanted if wanted != asked else 0


def _free(state: State, job: Allocation, gpus: int, avoid: set[str]) -> int:
    live = (other for other in state.allocations.values() if other.state.live)
    busy = {name for other in live for name in other.nodes}
    partitions = set(job.partition.split(","))  # that it may start in
    return sum(
        node.state is NodeState.UP
        and node.gpus >= gpus
        and not partitions.isdisjoint(node.partitions)
        for name, node in state.nodes.items()
        if name not in busy and name not in avoid
    )


def _others_wait(state: State, job: Allocation) -> bool:
    return any(
        other.state is JobState.PENDING
        and other.job_id != job.job_id
        and other.partition == job.partition
        and other.reason in ("Resources", "Priority")
        for other in state.allocations.values()
    )
