"""Who may give which command.

who                                  the cluster's mode   a run's mode
root, unicrond's own user, an admin  yes                  yes
the run's owner                      no                   yes, but active only if the cluster is
anybody else                         no                   no
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection

from unicrond.model.decision import Mode
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
