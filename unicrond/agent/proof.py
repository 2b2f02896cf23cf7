"""For unicron-run, where there is no MUNGE: the run's proof goes into the comment of its job."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

from unicrond.agent import facts, wishes
from unicrond.agent.job import secret_of
from unicrond.errors import BadInput
from unicrond.link.jobproof import proved_in, public_key

_ABSENT = re.compile(r" Comment=(\(null\)|\s|$)")


def prove(environment: Mapping[str, str]) -> None:
    """Raises BadInput, which tells why unicrond will not believe this run's agents."""
    record, job = facts.record_of(environment), environment.get("SLURM_JOB_ID", "")
    comment = wishes.comment_of(record)
    if not comment and " Comment=" in record and not _ABSENT.search(record):
        raise BadInput(
            "this site has no MUNGE, so that unicrond looks for the run's proof in the job's"
            ' comment, which holds other words: write --comment=\'{"note": "..."}\''
        )
    told = proved_in(comment, public_key(secret_of(environment)))
    command = ["scontrol", "update", f"JobId={job}", f"Comment={told}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=facts.COMMAND_TIMEOUT_SECONDS,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise BadInput(f"the run's proof is not in its job's comment: {error}") from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise BadInput(f"the run's proof is not in its job's comment: {said}")
