"""Which records of jobs are Slurm's own, and which a line break in somebody's comment has forged.

`scontrol show job` prints what users wrote as it is, and a forged record looks like any other. Its
id tells: `squeue` prints ids alone, and Slurm asked for one job prints what that job's owner wrote
and nobody else. Asked only when an id is new or stands twice: a quiet cycle costs no command more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from unicrond.errors import Refused, SlurmUnavailable
from unicrond.model.cluster import Allocation, JobState, Node
from unicrond.slurm.parse import Jobs

ShownAlone = Callable[[int, Mapping[str, Node]], Allocation]

MOST_ASKED = 64  # jobs asked for one by one in a look; what is beyond stays unknown


class Listing:
    """`ids` lists the jobs that there are, `one` reads a single job; both ask Slurm."""

    def __init__(self, ids: Callable[[], frozenset[int]], one: ShownAlone) -> None:
        self._ids = ids
        self._one = one
        self._listed: frozenset[int] = frozenset()

    def own(self, jobs: Jobs, nodes: Mapping[str, Node]) -> Jobs:
        """Without what is forged. Raises Refused or SlurmUnavailable."""
        claimed = {job.job_id for job in jobs.known.values() if _matters(job)}
        if not claimed <= self._listed:
            self._listed = self._ids()
        forged = claimed - self._listed
        known = {job_id: job for job_id, job in jobs.known.items() if job_id not in forged}
        known |= self._asked(sorted(jobs.shown_twice & self._listed)[:MOST_ASKED], nodes)
        told = [
            f"job {job_id}: no such job; a line break in a name or comment of another forges it"
            for job_id in sorted(forged)
        ]
        return replace(jobs, known=known, troubles=(*jobs.troubles, *told))

    def _asked(self, job_ids: list[int], nodes: Mapping[str, Node]) -> dict[int, Allocation]:
        """Until Slurm has no answer: the others stay unknown."""
        found: dict[int, Allocation] = {}
        for job_id in job_ids:
            try:
                found[job_id] = self._one(job_id, nodes)
            except Refused:
                continue
            except SlurmUnavailable:
                break
        return found


def _matters(job: Allocation) -> bool:
    return bool(job.gpus) or job.state is JobState.UNKNOWN
