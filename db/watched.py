"""What a new snapshot changes in the tables of allocations and nodes. Pure.

A snapshot describes the whole cluster each few seconds and nearly all of it as before; only what
differs from what was last written is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from unicrond.model.cluster import Allocation, Node, Snapshot


@dataclass(frozen=True, slots=True)
class AllocationRow:
    """`row` is its number in the table, 0 before it has one."""

    row: int
    allocation: Allocation


@dataclass(slots=True)
class Written:
    """What the tables say now: allocations that Slurm still listed, and nodes."""

    allocations: dict[int, AllocationRow] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Difference:
    """`added` includes a job id that Slurm gave to a new submission; the old one is `gone`."""

    added: tuple[Allocation, ...] = ()
    changed: tuple[AllocationRow, ...] = ()
    gone: tuple[AllocationRow, ...] = ()
    nodes: tuple[Node, ...] = ()  # new or changed
    nodes_removed: tuple[str, ...] = ()


def difference(written: Written, snapshot: Snapshot) -> Difference:
    """Unknown (None) changes nothing: it is not "gone"."""
    result = Difference()
    if snapshot.allocations is not None:
        result = _allocations(written.allocations, snapshot.allocations)
    if snapshot.nodes is not None:
        result = replace(
            result,
            nodes=tuple(n for name, n in snapshot.nodes.items() if written.nodes.get(name) != n),
            nodes_removed=tuple(name for name in written.nodes if name not in snapshot.nodes),
        )
    return result


def _allocations(written: Mapping[int, AllocationRow], now: Mapping[int, Allocation]) -> Difference:
    added, changed, gone = [], [], []
    for job_id, allocation in now.items():
        old = written.get(job_id)
        if old is None:
            added.append(allocation)
        elif not _same_submission(old.allocation, allocation):
            gone.append(old)
            added.append(allocation)
        elif old.allocation != allocation:
            changed.append(AllocationRow(old.row, allocation))
    gone += [old for job_id, old in written.items() if job_id not in now]
    return Difference(tuple(added), tuple(changed), tuple(gone))


def _same_submission(old: Allocation, new: Allocation) -> bool:
    """Slurm gives a job id again once it has run out of them, and a requeue submits anew."""
    known = old.submit_time and new.submit_time
    return not known or old.submit_time == new.submit_time


def after(written: Written, snapshot: Snapshot, rows: Mapping[int, int]) -> Written:
    """What the tables say once the difference is written; `rows`: job id to number of row."""
    allocations, nodes = written.allocations, written.nodes
    if snapshot.allocations is not None:
        allocations = {
            job_id: AllocationRow(rows.get(job_id) or written.allocations[job_id].row, allocation)
            for job_id, allocation in snapshot.allocations.items()
        }
    if snapshot.nodes is not None:
        nodes = dict(snapshot.nodes)
    return Written(allocations, nodes)
