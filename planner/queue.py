"""What waits in Slurm's queue: nodes that others wait for are not there to be lent. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from unicrond.model.cluster import Allocation, JobState, Node, NodeState

WANTING = ("Resources", "Priority")  # Slurm's reasons of a job that waits for nodes
COMPANION = '"companion_of"'  # in a companion's comment; its user may write so, who then waits


def contested(allocations: Iterable[Allocation], nodes: Mapping[str, Node]) -> frozenset[str]:
    """Partitions in which a job waits that could start, were all that is lent given back."""
    jobs = [job for job in allocations if job.state.live]
    waiting = [j for j in jobs if j.state is JobState.PENDING and _waits_for_nodes(j)]
    if not waiting:
        return frozenset()
    held = {n for job in jobs if COMPANION not in job.comment for n in job.nodes}
    free = [n for name, n in nodes.items() if n.state is NodeState.UP and name not in held]
    found = set[str]()
    for job in waiting:
        partitions = set(job.partition.split(","))
        gpus = sum(n.gpus for n in free if not partitions.isdisjoint(n.partitions))
        if job.gpus <= gpus:
            found |= partitions
    return frozenset(found)


def is_contested(allocations: Iterable[Allocation], nodes: Mapping[str, Node], job_id: int) -> bool:
    """Whether jobs wait for nodes where this one runs."""
    jobs = list(allocations)
    mine = next((set(job.partition.split(",")) for job in jobs if job.job_id == job_id), set[str]())
    return not mine.isdisjoint(contested(jobs, nodes))


def _waits_for_nodes(job: Allocation) -> bool:
    return job.reason in WANTING and COMPANION not in job.comment
