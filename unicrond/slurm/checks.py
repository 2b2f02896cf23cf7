"""A second look before each act: still due, done already, or no longer right. Pure.

Both Slurms ask here, so that the simulated one refuses what the real one does.
"""

from __future__ import annotations

from collections.abc import Sequence

from unicrond.errors import Refused, SlurmUnavailable
from unicrond.model.cluster import Allocation, JobState, Node, NodeState
from unicrond.slurm.parse import OUR_REASON


def is_ours(reason: str) -> bool:
    """Slurm may have appended " : Not responding"; the prefix stays."""
    return reason.startswith(OUR_REASON)


def drain_is_due(node: Node, reason: str) -> bool:
    """False when we drained it already; Refused when somebody else has his reasons."""
    if not is_ours(reason) or "\n" in reason:
        raise Refused(f"a drain's reason is one line that starts with {OUR_REASON!r}: {reason!r}")
    if node.reason and not is_ours(node.reason):
        owner = node.reason_user or "another"
        raise Refused(f"{node.name} carries {owner}'s reason: {node.reason}")
    if node.state is NodeState.DRAINED or "DRAIN" in node.raw_state:
        if not node.reason:
            raise Refused(f"{node.name} was drained by somebody without a reason")
        return False
    return True


def resume_is_due(node: Node, reason: str) -> bool:
    """False when it is in service already; Refused where another has his reasons by now."""
    drained = node.state is NodeState.DRAINED or "DRAIN" in node.raw_state
    if not node.reason and not drained:
        return False
    if not is_ours(reason) or node.reason != reason:
        raise Refused(f"{node.name} ({node.raw_state}) has another reason by now: {node.reason}")
    if "NOT_RESPONDING" in node.raw_state or "*" in node.raw_state:
        raise Refused(f"{node.name} does not respond")
    return True


def shrink_is_due(job: Allocation, keep: Sequence[str]) -> bool:
    """False when the job has just these nodes; Refused when Slurm could not do it."""
    if job.state is not JobState.RUNNING:
        raise Refused(f"job {job.job_id} is {job.state}, not running")
    strangers = sorted(set(keep) - set(job.nodes))
    if strangers:
        raise Refused(f"job {job.job_id} does not hold {', '.join(strangers)}")
    if set(keep) == set(job.nodes):
        return False
    if job.batch_host not in keep:
        raise Refused(f"job {job.job_id} cannot leave its batch host {job.batch_host}")
    return True


def cancel_is_due(job: Allocation, uid: int) -> bool:
    """False when it has ended; Refused when it is another's: a user's agent told its number."""
    if job.uid != uid:
        raise Refused(f"job {job.job_id} belongs to {job.user}")
    return job.state.live and job.state is not JobState.COMPLETING


def requeue_is_due(job: Allocation, restarts: int) -> bool:
    """False when it was requeued since; Refused when its owner or its own end decided otherwise.

    What a job becomes after COMPLETING Slurm does not show: it may have been cancelled, and would
    be brought back to life.
    """
    if job.restarts != restarts or job.state is JobState.PENDING:
        return False
    if job.state is JobState.COMPLETING:
        raise SlurmUnavailable(f"job {job.job_id} is completing: its end is not known yet")
    if job.state in (JobState.CANCELLED, JobState.COMPLETED):
        raise Refused(f"job {job.job_id} is {job.state}")
    return True


def expedite_is_allowed(job: Allocation) -> None:
    """While COMPLETING a new start time is accepted and lost."""
    if job.state is not JobState.PENDING:
        raise Refused(f"job {job.job_id} is {job.state}, not pending yet")
    if "held" in job.reason.lower():
        raise Refused(f"job {job.job_id} is on hold ({job.reason})")
