"""Who may give which command.

who                                  cluster's mode  run's mode         a review     run's share
root, unicrond's own user, an admin  yes             yes                yes          yes
the run's owner                      no              yes, active only   of this run  a lower weight
                                                     if the cluster is
anybody else                         no              no                 no           no
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection

from unicrond.model.decision import Mode
from unicrond.model.incident import Incident
from unicrond.model.run import Run


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def is_admin(uid: int, admins: Collection[str]) -> bool:
    return uid in (0, os.getuid()) or user_name(uid) in admins


def refusal(
    uid: int, admins: Collection[str], mode: Mode, run: Run | None, cluster: Mode | None
) -> str:
    """Why this command is not theirs to give, "" when it is. `run` None: the whole cluster."""
    if is_admin(uid, admins):
        return ""
    if run is None:
        return f"{user_name(uid)} may not set the cluster's mode: ask an admin of unicrond"
    if run.uid != uid:
        return f"run {run.run_id} is {run.user}'s: only its owner and admins may set its mode"
    if mode is Mode.ACTIVE and cluster is not Mode.ACTIVE:
        return "the cluster's mode is not active: only an admin may make a run active"
    return ""


def share_refusal(
    uid: int, admins: Collection[str], run: Run, weight: float | None, floor_nodes: int | None
) -> str:
    """Why this share is not theirs to set, "" when it is."""
    if is_admin(uid, admins):
        return ""
    if run.uid != uid:
        return f"run {run.run_id} is {run.user}'s: only its owner and admins may set its share"
    if floor_nodes is not None or (weight is not None and weight > run.weight):
        return f"only an admin may raise the weight of run {run.run_id} or guarantee it nodes"
    return ""


def review_refusal(uid: int, admins: Collection[str], incident: Incident, run: Run | None) -> str:
    """Why this incident is not theirs to judge, "" when it is."""
    if is_admin(uid, admins) or (run is not None and run.uid == uid):
        return ""
    whose = f"the owner of run {run.run_id} ({run.user}) and admins" if run else "admins"
    return f"incident {incident.incident_id}: only {whose} may say whether it was one"
