"""What a snapshot of Slurm means for the runs. What is unknown changes nothing."""

from __future__ import annotations

from dataclasses import replace

from unicrond.core import allocated, queued, reasons
from unicrond.core.agents import TERMINATED, incarnate, leave_start
from unicrond.core.cycle import Cycle
from unicrond.core.trouble import Fault, report
from unicrond.model.cluster import Allocation, JobState, Snapshot
from unicrond.model.incident import IncidentState, Scope, Severity
from unicrond.model.run import HealStep, Run, RunState
from unicrond.ports import Changes

_ENDS = {
    JobState.COMPLETED: RunState.COMPLETED,
    JobState.FAILED: RunState.FAILED,
    JobState.NODE_FAIL: RunState.FAILED,
    JobState.TIMEOUT: RunState.FAILED,
    JobState.PREEMPTED: RunState.CANCELLED,
    JobState.CANCELLED: RunState.CANCELLED,
}
_INFRASTRUCTURE = (JobState.FAILED, JobState.NODE_FAIL)


def on_snapshot(cycle: Cycle, snapshot: Snapshot) -> None:
    """Takes over what is known, then looks at each run's job."""
    state = cycle.state
    cycle.snapshot_changes = Changes(snapshot=snapshot)
    _tell_troubles(cycle, snapshot)
    if snapshot.nodes is not None:
        before, state.nodes = state.nodes, snapshot.nodes
        reasons.on_nodes(cycle, before)
    if snapshot.allocations is None:
        return
    state.allocations, state.snapshot_at = snapshot.allocations, snapshot.at
    for run in state.live_runs():
        _look(cycle, run, snapshot.allocations.get(run.run_id))


def _tell_troubles(cycle: Cycle, snapshot: Snapshot) -> None:
    """Each once."""
    state, doubt = cycle.state, ""
    error = snapshot.error
    if not _is_unread(snapshot):
        error, doubt = "", error
    if error != state.slurm_error:
        cycle.note("note", f"Slurm cannot be read: {error}" if error else "Slurm answers again")
    if doubt and doubt != state.slurm_doubt:
        cycle.note("note", f"some of what Slurm says makes no sense: {doubt}")
    state.slurm_error, state.slurm_doubt = error, doubt


def _is_unread(snapshot: Snapshot) -> bool:
    """By Slurm's fault or ours; a few jobs that make no sense are their users' doing."""
    if snapshot.nodes is None or snapshot.allocations is None:
        return True
    if not all(node.raw_state for node in snapshot.nodes.values()):
        return True
    return {job.state for job in snapshot.allocations.values()} == {JobState.UNKNOWN}


def _look(cycle: Cycle, run: Run, allocation: Allocation | None) -> None:
    if allocation is None:
        if not any(view.connected for view in run.agents.values()):
            completed = run.finished_code == 0
            state = RunState.COMPLETED if completed else RunState.FAILED
            end(cycle, run, state, "Slurm no longer knows the job")
        return
    cycle.touched.add(run.run_id)
    match allocation.state:
        case JobState.RUNNING:
            _running(cycle, run, allocation)
        case JobState.PENDING:
            _pending(cycle, run, allocation)
        case ended if ended in _ENDS:
            _ended(cycle, run, allocation)
        case _:
            pass  # completing, suspended, unknown: not the end yet


def _running(cycle: Cycle, run: Run, allocation: Allocation) -> None:
    if allocation.restarts > run.restarts:
        run = incarnate(cycle, run, allocation.restarts, allocation.nodes)
    facts = (allocation.user, allocation.batch_host, allocation.whole_nodes)
    if facts != (run.user, run.batch_host, run.whole_nodes):
        run = cycle.put(replace(run, user=facts[0], batch_host=facts[1], whole_nodes=facts[2]))
        if not run.whole_nodes:
            cycle.note("note", "the job has parts of nodes: it is observed only", run)
    held = allocated.held_nodes(cycle.state, run, allocation)
    if allocation.nodes and set(held) != set(run.nodes):
        gone = [n for n in run.nodes if n not in held]
        run = cycle.put(replace(run, nodes=held))
        if gone:
            cycle.note("note", f"Slurm took {','.join(gone)} from the job", run)
        _leave_taken(cycle, run, gone)


def _leave_taken(cycle: Cycle, run: Run, gone: list[str]) -> None:
    """Ranks on a node that Slurm took must stop: Slurm may start another job there."""
    if run.assignment is None:
        return
    for node in gone:
        current = cycle.state.runs[run.run_id]
        assert current.assignment is not None
        healing = current.healing
        nodes = healing.nodes if healing else current.assignment.nodes
        if node in nodes:
            report(
                cycle,
                current,
                Fault(
                    "lost connection",
                    Severity.SEV1,
                    Scope.NODE,
                    node,
                    f"Slurm took {node} from the job",
                    cycle.now,
                    "slurm.took",
                    fact=True,
                    lost=(node,),
                ),
            )


def _pending(cycle: Cycle, run: Run, allocation: Allocation) -> None:
    if run.state is RunState.REQUEUED or allocation.restarts <= run.restarts:
        return
    if run.finished_code not in (None, TERMINATED) and "held" in allocation.reason.lower():
        # `--requeue=expedite` (Slurm 25.11): a job whose program failed is put on hold
        state = RunState.FAILED if run.finished_code else RunState.COMPLETED
        end(cycle, run, state, f"its program ended; Slurm holds the job ({allocation.reason})")
        return
    cycle.note("note", f"the job waits in Slurm's queue again: {allocation.reason}", run)
    run = cycle.put(replace(leave_start(cycle, run), state=RunState.REQUEUED))
    queued.adopt(cycle, run, allocation)


def _ended(cycle: Cycle, run: Run, allocation: Allocation) -> None:
    if allocation.restarts < run.restarts:
        return  # an old record of a job that was requeued
    decided = run.finished_code not in (None, TERMINATED)  # by the agents, not by Slurm
    if allocation.state in _INFRASTRUCTURE and not decided and _healable(run):
        run = cycle.put(replace(run, agents={}, finished_code=None))
        report(
            cycle,
            run,
            Fault(
                "exited abnormally",
                Severity.SEV1,
                Scope.RUN,
                run.batch_host,
                f"Slurm ended the job ({allocation.state}) although no agent said that it was over",
                cycle.now,
                "slurm.ended",
                fact=True,
                lost=(run.batch_host,),
            ),
        )
        if cycle.state.runs[run.run_id].healing is not None:
            return
    end(
        cycle,
        cycle.state.runs[run.run_id],
        _ENDS[allocation.state],
        f"Slurm says {allocation.state}",
    )


def _healable(run: Run) -> bool:
    """A job that ended without its agents' word is requeued; one being requeued already is not."""
    if run.healing is not None and run.healing.step in (HealStep.REQUEUE, HealStep.END):
        return False
    return run.assignment is not None or run.healing is not None


def end(cycle: Cycle, run: Run, state: RunState, why: str) -> None:
    """The run is over; its open incidents close with it."""
    if (
        run.healing is not None
        and run.healing.step is HealStep.REQUEUE
        and (state is RunState.FAILED and cycle.now < run.healing.deadline)
    ):
        return  # our own requeue of a failed job is on its way
    code = f", exit code {run.finished_code}" if run.finished_code else ""
    reason = run.end_reason or f"{why}{code}"
    run = cycle.put(replace(run, state=state, healing=None, end_reason=reason, ended_at=cycle.now))
    cycle.note("note", f"run {run.run_id} {state}: {reason}", run)
    for incident in tuple(cycle.state.incidents.values()):
        if incident.run_id == run.run_id:
            cycle.close_incident(incident.incident_id, IncidentState.CLOSED, f"the run is {state}")
