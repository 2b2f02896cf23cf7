"""Who may give which command.

who                    cluster's mode  run's mode          a review      run's share, size
admin                  yes             yes                 yes           yes
operator               paused only     yes, as the owner   yes           no
the run's owner, who   no              yes, active only    of this run   a lower weight,
coordinates its account                if the cluster is                 a smaller size
anybody else           no              no                  no            no

Root and unicrond's own user are admins (gate.py).
"""

from __future__ import annotations

from unicrond.api.callers import Caller, Role
from unicrond.model.decision import Mode
from unicrond.model.incident import Incident
from unicrond.model.run import Run

STRANGER = (
    "commands come over the Unix socket, or with a token or a MUNGE credential: use unicronctl"
)


def _commands(caller: Caller, run: Run, account: str) -> bool:
    return caller.role >= Role.OPERATOR or caller.owns(run.user, run.uid, account)


def refusal(caller: Caller, mode: Mode, run: Run | None, cluster: Mode | None, account: str) -> str:
    """Why this command is not theirs to give, "" when it is. `run` None: the whole cluster."""
    if caller.role is Role.ADMIN:
        return ""
    if run is None:
        if caller.role is Role.OPERATOR and mode is Mode.PAUSED:
            return ""
        return f"{caller.user} may not set the cluster's mode: ask an admin of unicrond"
    if not _commands(caller, run, account):
        return f"run {run.run_id} is {run.user}'s: only its owner and admins may set its mode"
    if mode is Mode.ACTIVE and cluster is not Mode.ACTIVE:
        return "the cluster's mode is not active: only an admin may make a run active"
    return ""


def share_refusal(
    caller: Caller, run: Run, weight: float | None, floor_nodes: int | None, account: str
) -> str:
    """Why this share is not theirs to set, "" when it is."""
    if caller.role is Role.ADMIN:
        return ""
    if not caller.owns(run.user, run.uid, account):
        return f"run {run.run_id} is {run.user}'s: only its owner and admins may set its share"
    if floor_nodes is not None or (weight is not None and weight > run.weight):
        return f"only an admin may raise the weight of run {run.run_id} or guarantee it nodes"
    return ""


def resize_refusal(caller: Caller, run: Run, nodes: int, account: str) -> str:
    """Why this size is not theirs to order, "" when it is: owners may give nodes back."""
    if caller.role is Role.ADMIN:
        return ""
    if not caller.owns(run.user, run.uid, account):
        return f"run {run.run_id} is {run.user}'s: only its owner and admins may resize it"
    if nodes > len(run.assignment.nodes if run.assignment else run.nodes):
        return f"only an admin may have run {run.run_id} grow"
    return ""


def review_refusal(caller: Caller, incident: Incident, run: Run | None, account: str) -> str:
    """Why this incident is not theirs to judge, "" when it is."""
    if caller.role >= Role.OPERATOR or (run is not None and _commands(caller, run, account)):
        return ""
    whose = f"the owner of run {run.run_id} ({run.user}) and admins" if run else "admins"
    return f"incident {incident.incident_id}: only {whose} may say whether it was one"
