"""What companions owe to everybody else in Slurm's queue: they give way.

    a job waits for nodes (Resources, Priority), and with a companion's it could start
        ──> companions are given back, the newest first, until it can
    nodes enough are free, and it waits for PATIENCE_SECONDS all the same
        ──> as many: its constraints are not told to us
    a companion's time limit is near, and its base goes on ──> given back before Slurm kills it

At an iteration boundary where ranks regroup. For one job MOST_TIMES at most: what does not help it
would only make the run shrink and grow by turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.queue import COMPANION, WANTING
from unicrond.core import companions
from unicrond.core.allocated import running
from unicrond.core.cycle import Cycle
from unicrond.core.guards import restarts_left
from unicrond.core.state import State
from unicrond.model.cluster import Allocation, JobState, NodeState
from unicrond.model.incident import Scope, Severity
from unicrond.model.run import Run, RunState

PATIENCE_SECONDS = 30.0
LEAVE_SECONDS = 60.0  # before a companion's time limit
MOST_TIMES = 2
AGAIN_SECONDS = 60.0  # Slurm looks at its queue meanwhile


@dataclass(frozen=True, slots=True)
class Lent:
    """A companion that could be given back now."""

    run: Run
    job: Allocation


def look(cycle: Cycle) -> None:
    """After each look at Slurm."""
    lent = list(_lent(cycle.state, cycle.now))
    if not lent:
        return
    for companion in tuple(lent):
        if _ends_early(cycle.state, companion, cycle.now):
            lent.remove(companion)
            job_id = companion.job.job_id
            _give_back(cycle, companion, f"the time limit of companion job {job_id} is near")
    for job in _waiting(cycle.state):
        for companion in _in_the_way(cycle, job, lent):
            lent.remove(companion)
            what = f"job {job.job_id} of {job.user} waits for nodes"
            _give_back(cycle, companion, f"{what}: companion job {companion.job.job_id} goes")


def _lent(state: State, now: float) -> Iterator[Lent]:
    """The newest first."""
    for run in state.live_runs():
        busy = run.state is not RunState.RUNNING or run.healing or run.joining
        if run.companions and not busy and run.assignment and state.acts_for(run):
            jobs = sorted(running(state, run), key=lambda j: j.start_time, reverse=True)
            first = next((j for j in jobs if _can_go(run, j)), None)
            if first is not None and restarts_left(run, now, state.policy):
                yield Lent(run, first)


def _can_go(run: Run, job: Allocation) -> bool:
    """Unless it is on its way already, or the run could not go on without it."""
    members = run.assignment.nodes if run.assignment else ()
    if any(loss.node in job.nodes and not loss.state.settled for loss in run.losses):
        return False
    return len(set(members) - set(job.nodes)) >= run.min_nodes


def _ends_early(state: State, lent: Lent, now: float) -> bool:
    base = state.allocations.get(lent.run.run_id)
    end, last = _end_of(lent.job), _end_of(base) if base else 0.0
    near = 0 < end <= now + LEAVE_SECONDS
    return near and not 0 < last <= end + 2 * LEAVE_SECONDS  # else both end, one after the other


def _end_of(job: Allocation) -> float:
    """Unix seconds, 0: never."""
    return job.start_time + job.time_limit_seconds if job.time_limit_seconds else 0.0


def _waiting(state: State) -> list[Allocation]:
    jobs = state.allocations.values()
    found = [j for j in jobs if j.state is JobState.PENDING and j.reason in WANTING]
    return sorted((j for j in found if COMPANION not in j.comment), key=lambda j: j.submit_time)


def _in_the_way(cycle: Cycle, job: Allocation, lent: list[Lent]) -> list[Lent]:
    """The companions that go for this job; none where that would not have it start."""
    state, usable = cycle.state, _usable(cycle.state, job)
    fitting = [x for x in lent if not usable.isdisjoint(x.job.nodes)]
    times, last = state.given_way.get(job.job_id, (0, 0.0))
    if not fitting or times >= MOST_TIMES or cycle.now < last + AGAIN_SECONDS:
        return []
    gpus = max(state.nodes[n].gpus for n in usable) or 1
    missing = -(-job.gpus // gpus)
    if cycle.now < job.submit_time + PATIENCE_SECONDS:
        missing -= len(usable - _busy(state))
    going: list[Lent] = []
    for companion in fitting:
        if missing > 0:
            going.append(companion)
            missing -= len(usable.intersection(companion.job.nodes))
    if missing > 0 or not going:
        return []
    state.given_way[job.job_id] = (times + 1, cycle.now)
    return going


def _usable(state: State, job: Allocation) -> set[str]:
    partitions = set(job.partition.split(","))
    return {
        name
        for name, node in state.nodes.items()
        if node.state is NodeState.UP and not partitions.isdisjoint(node.partitions)
    }


def _busy(state: State) -> set[str]:
    return {n for job in state.allocations.values() if job.state.live for n in job.nodes}


def _give_back(cycle: Cycle, lent: Lent, what: str) -> None:
    run = cycle.state.runs[lent.run.run_id]
    incident = cycle.open_incident(companions.KIND, Severity.NONE, Scope.RUN, run, what)
    members = run.assignment.nodes if run.assignment else ()
    if set(members).isdisjoint(lent.job.nodes):  # its agents are not in the run yet
        companions.dismiss(cycle, run, lent.job.job_id, what)
    else:
        companions.give_back(cycle, run, incident, list(lent.job.nodes))
