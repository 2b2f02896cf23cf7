"""Which of Slurm's jobs hold a run's nodes: its base, and companions that run. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from unicrond.core.state import State
from unicrond.model.cluster import Allocation, JobState
from unicrond.model.run import Run


def running(state: State, run: Run) -> Iterator[Allocation]:
    for companion in run.companions:
        job = state.allocations.get(companion.job_id)
        ours = job is not None and job.uid == run.uid and job.job_id not in state.runs
        if job is not None and ours and job.state is JobState.RUNNING:
            yield job


def held_nodes(state: State, run: Run, base: Allocation) -> tuple[str, ...]:
    """Of the base and of the companions that run."""
    theirs = (node for job in running(state, run) for node in job.nodes)
    return tuple(dict.fromkeys((*base.nodes, *theirs)))


def job_of(state: State, run: Run, node: str) -> Allocation | None:
    """The running job of this run that holds the node; the base's where none does."""
    base = state.allocations.get(run.run_id)
    found = next((job for job in running(state, run) if node in job.nodes), base)
    return found if found and found.state is JobState.RUNNING else None
