"""A run's size is changed: it grows by companion jobs, which its own agent submits, and shrinks.

    asked ──> submitted ──> waits ──> runs, its agents are idle ──> in the next generation
      └──────────┴────────────┴──> given up: too late, refused, or the base is no longer the same

Where ranks regroup `joining` takes the new nodes in; else all restart, on the larger assignment.
A companion that ends gives its nodes back, and the run goes on without them. It ends with the base.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from transition.membership import Trouble
from unicrond.core import heal
from unicrond.core.allocated import running
from unicrond.core.cycle import Cycle
from unicrond.core.guards import drained_by_us, restarts_left
from unicrond.core.state import State
from unicrond.model.cluster import Allocation, JobState
from unicrond.model.decision import Action, ActionKind, Alternative, Outcome, OutcomeState
from unicrond.model.events import ResizeAsked
from unicrond.model.incident import Incident, IncidentState, Scope, Severity
from unicrond.model.run import Companion, Loss, LossState, Phase, Run, RunState

KIND = "resize"
LAG_SECONDS = 10.0  # a look at Slurm may be older than the submission


# the operator's order
def on_resize(cycle: Cycle, event: ResizeAsked) -> None:
    run = cycle.state.runs.get(event.run_id)
    if run is None or run.state.ended:
        return
    asked = f"{event.who} asks for {event.nodes} nodes"
    if why := why_not(cycle.state, run, event.nodes, cycle.now):
        cycle.note("note", f"{asked}: not done, {why}", run)
        return
    assert run.assignment is not None
    size = len(run.assignment.nodes)
    incident = cycle.open_incident(KIND, Severity.NONE, Scope.RUN, run, asked)
    if event.nodes > size:
        grow(cycle, run, incident, event.nodes - size)
    else:
        shrink(cycle, run, incident, event.nodes)
    _hands_off(cycle, run.run_id)


def why_not(state: State, run: Run, nodes: int, now: float) -> str:
    """Why its size cannot be changed now, "" where it can."""
    why = impossible(state, run, nodes, now)
    return why if why or state.acts_for(run) else "it is only observed"


def impossible(state: State, run: Run, nodes: int, now: float) -> str:
    """The same, were it to be more than observed."""
    if run.state is not RunState.RUNNING or run.healing or run.joining or not run.assignment:
        return f"it is {run.state}, and something else is under way"
    if not run.min_nodes <= nodes <= run.max_nodes:
        return f"its user allows {run.min_nodes} to {run.max_nodes} nodes"
    if nodes == len(run.assignment.nodes):
        return "it has as many"
    if nodes > len(run.assignment.nodes) and run.companions and not _all_in(state, run):
        return "another companion is on its way"
    return "" if restarts_left(run, now, state.policy) else "its restarts of this hour are used up"


def _all_in(state: State, run: Run) -> bool:
    members = run.assignment.nodes if run.assignment else ()
    jobs = [state.allocations.get(c.job_id) for c in run.companions]
    return all(job is not None and set(job.nodes) <= set(members) for job in jobs)


def grow(
    cycle: Cycle,
    run: Run,
    incident: Incident,
    more: int,
    leave_out: Sequence[str] = (),
    weighed: tuple[Alternative, ...] = (),
) -> None:
    """`leave_out`: nodes that are meant for others."""
    agents = [n for n, view in sorted(run.agents.items()) if view.connected]
    helper = run.batch_host if run.batch_host in agents else next(iter(agents), "")
    number, policy = incident.incident_id, cycle.state.policy
    reason = f"{incident.summary}: a companion job of {more} nodes is submitted"
    cycle.decide(incident, run, "grow", reason, weighed)
    if not helper:
        cycle.close_incident(number, IncidentState.CLOSED, "no agent of it is connected")
        return
    deadline = cycle.now + policy.companion_timeout_seconds
    companion = Companion(number, more, run.restarts, cycle.now, deadline)
    run = cycle.put(replace(run, companions=(*run.companions, companion)))
    avoid = {*unfit(cycle.state, run), *leave_out}
    bad = sorted(n for n in avoid if not drained_by_us(cycle.state, n))
    cycle.act(
        number, run, ActionKind.SUBMIT_COMPANION, helper, nodes=more, exclude=bad,
        minutes=_minutes(cycle, run), within=int(policy.companion_timeout_seconds),
        qos=policy.companion_qos, partition=policy.companion_partition,
    )  # fmt: skip


def unfit(state: State, run: Run) -> set[str]:
    """Nodes that a run does not grow onto. One that it gave back, and that is well, is none."""
    kept = LossState.KEPT
    losses = (x.node for x in run.losses if not x.state.settled or x.state is kept)
    ours = (name for name in state.nodes if drained_by_us(state, name))
    return {*run.shunned, *losses, *ours}


def _minutes(cycle: Cycle, run: Run) -> int:
    """It never outlives its base, and is short enough to be backfilled."""
    job, limit = cycle.state.allocations.get(run.run_id), cycle.state.policy.companion_limit_seconds
    if job is not None and job.time_limit_seconds:
        limit = min(limit, job.start_time + job.time_limit_seconds - cycle.now)
    return max(1, int(limit // 60))


def shrink(cycle: Cycle, run: Run, incident: Incident, nodes: int) -> None:
    """Companions' nodes first, the newest first; never the batch host."""
    assert run.assignment is not None
    base = cycle.state.allocations.get(run.run_id)
    own = set(base.nodes) if base else set()
    members = sorted(run.assignment.nodes, key=lambda n: (n not in own, run.nodes.index(n)))
    going = [n for n in members if n != run.batch_host]
    give_back(cycle, run, incident, going[nodes - (run.batch_host in members) :])


def give_back(cycle: Cycle, run: Run, incident: Incident, going: list[str]) -> None:
    """The run goes on without these nodes, then Slurm gets them."""
    deadline = cycle.now + cycle.state.policy.confirm_timeout_seconds
    left = (Loss(n, incident.incident_id, cycle.now, deadline, LossState.LEFT) for n in going)
    run = _rests(cycle, replace(run, losses=(*run.losses, *left)[-64:]))
    heal.begin(cycle, run, incident, Trouble("", what=f"{incident.summary}; {','.join(going)} go"))


def _rests(cycle: Cycle, run: Run) -> Run:
    """No plan lets it grow for a while: it would give and take by turns."""
    until = cycle.now + cycle.state.policy.regrow_seconds
    return cycle.put(replace(run, no_growth_until=until))


def _hands_off(cycle: Cycle, run_id: int) -> None:
    run, seconds = cycle.state.runs[run_id], cycle.state.policy.hands_off_seconds
    cycle.put(replace(run, hands_off_until=cycle.now + seconds))


def look(cycle: Cycle) -> None:
    """After each look at Slurm."""
    for run in tuple(cycle.state.runs.values()):
        for companion in run.companions:
            _follow(cycle, cycle.state.runs[run.run_id], companion)


def _follow(cycle: Cycle, run: Run, companion: Companion) -> None:
    job = cycle.state.allocations.get(companion.job_id)
    fresh = cycle.state.snapshot_at > companion.asked_at + LAG_SECONDS
    over = run.state.ended or run.state is RunState.REQUEUED or run.restarts != companion.restarts
    if over:
        _dismiss(cycle, run, companion, "the job that it accompanies is over")
    elif companion.job_id and ((job is None and fresh) or (job is not None and not job.state.live)):
        by_us = cycle.now < run.no_growth_until  # it gave nodes back a moment ago
        _forget(cycle, run, companion, f"companion job {companion.job_id} has ended")
        if job is not None and job.state is JobState.CANCELLED and not by_us:
            _hands_off(cycle, run.run_id)
    elif (job is None or job.state is JobState.PENDING) and cycle.now > companion.deadline:
        _dismiss(cycle, run, companion, "it did not start in time")
    elif job is not None and job.state is JobState.RUNNING:
        _welcome(cycle, run, companion, job)


def _welcome(cycle: Cycle, run: Run, companion: Companion, job: Allocation) -> None:
    """What was lost or given back there before is no reason against a node that we got anew."""
    old = [x for x in run.losses if x.node in job.nodes and x.since < companion.asked_at]
    if any(x.state.settled for x in old):
        kept = tuple(x for x in run.losses if x not in old or not x.state.settled)
        cycle.put(replace(run, losses=kept))


def dismiss(cycle: Cycle, run: Run, job_id: int, why: str) -> None:
    """A companion that is not part of the run yet."""
    for companion in run.companions:
        if companion.job_id == job_id:
            _dismiss(cycle, run, companion, why)


def _dismiss(cycle: Cycle, run: Run, companion: Companion, why: str) -> None:
    if companion.job_id:
        job_id = companion.job_id
        cycle.act(companion.incident_id, None, ActionKind.CANCEL, job_id=job_id, uid=run.uid)
    _forget(cycle, run, companion, why)


def _forget(cycle: Cycle, run: Run, companion: Companion, why: str) -> None:
    cycle.supersede(run, frozenset({ActionKind.SUBMIT_COMPANION}), why)
    rest = tuple(c for c in run.companions if c.incident_id != companion.incident_id)
    _rests(cycle, replace(run, companions=rest))
    if companion.incident_id in cycle.state.incidents:
        cycle.close_incident(companion.incident_id, IncidentState.CLOSED, why)
    else:
        cycle.note("note", why, run, incident=companion.incident_id)


def advance(cycle: Cycle, run: Run) -> None:
    """Its agents are here and idle: where ranks cannot regroup, all restart with them."""
    if run.state is not RunState.RUNNING or run.healing or run.joining or not run.assignment:
        return
    members = set(run.assignment.nodes)
    for job in running(cycle.state, run):
        if members.issuperset(job.nodes) or not set(run.nodes).issuperset(job.nodes):
            continue
        if not all(_is_idle(run, node) for node in job.nodes):
            continue
        companion = next(c for c in run.companions if c.job_id == job.job_id)
        incident = cycle.state.incidents.get(companion.incident_id)
        if incident is None or _regroups(run) or not cycle.state.acts_for(run):
            continue
        what = f"companion job {job.job_id} brings {','.join(job.nodes)}"
        heal.begin(cycle, run, incident, Trouble("", what=what))
        return


def _is_idle(run: Run, node: str) -> bool:
    view = run.agents.get(node)
    return view is not None and view.connected and view.phase is Phase.IDLE


def _regroups(run: Run) -> bool:
    """Then `joining` takes them in, without a restart."""
    members = run.assignment.nodes if run.assignment else ()
    return all(run.agents[n].regrouping for n in members if n in run.agents)


def on_outcome(cycle: Cycle, run: Run, action: Action, outcome: Outcome) -> None:
    if action.kind is not ActionKind.SUBMIT_COMPANION:
        return
    number = outcome.key.incident_id
    companion = next((c for c in run.companions if c.incident_id == number), None)
    if companion is None:
        return
    job_id = outcome.data.get("job_id")
    if outcome.state is OutcomeState.DONE and isinstance(job_id, int) and job_id > 0:
        submitted = replace(companion, job_id=job_id)
        others = tuple(c for c in run.companions if c is not companion)
        cycle.put(replace(run, companions=(*others, submitted)))
    else:
        _forget(cycle, run, companion, f"no companion: {outcome.detail or 'it was not submitted'}")
