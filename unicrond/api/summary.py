"""The whole in one answer: whether unicrond does its work, and the cluster in numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter

from db.queries import Queries
from db.store import incident_ended
from unicrond import __version__
from unicrond.api.callers import Seeing
from unicrond.api.heartbeat import SILENT_AFTER_SECONDS, Heartbeat
from unicrond.api.models import ClusterOut, HealthOut, LeaderOut, PartitionOut
from unicrond.api.view import View, Viewer, heartbeat_of
from unicrond.core.leader import NOBODY, Row
from unicrond.errors import Refused, StoreUnavailable
from unicrond.model.cluster import JobState, Node, NodeState
from unicrond.model.incident import IncidentState

_HOLDING = (JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING)


def routes(
    queries: Queries, viewer: Viewer, cluster: str, now: Callable[[], float], holder: str = ""
) -> APIRouter:
    """`holder`: of the lease, while this unicrond leads."""
    router = APIRouter(tags=["health"])

    @router.get("/health")
    def health() -> HealthOut:
        """Whether unicrond does its work. What is not known is null or "unknown"."""
        try:
            queries.check()
            heartbeat, row, database = heartbeat_of(queries), queries.lease(), "ok"
        except StoreUnavailable as error:
            heartbeat, row, database = None, None, str(error)
        leader = None if row is None else _leader(row, holder)
        return _health(cluster, database, heartbeat, leader, now())

    cached: list[tuple[int, ClusterOut]] = []

    @router.get("/cluster")
    def whole(sight: Seeing) -> ClusterOut:
        """The cluster in numbers."""
        if not sight.nodes:
            raise Refused("Slurm's PrivateData keeps nodes to operators and admins here")
        view = viewer.current()
        if not cached or cached[0][0] != view.number:
            cached[:] = [(view.number, summary(cluster, view))]
        mode = view.heartbeat.mode if view.heartbeat else None
        return cached[0][1].model_copy(update={"mode": mode})

    return router


def _health(
    cluster: str, database: str, heart: Heartbeat | None, leader: LeaderOut | None, now: float
) -> HealthOut:
    age = None if heart is None else max(0.0, now - heart.at)
    alive = age is not None and age <= SILENT_AFTER_SECONDS
    slurm = "unknown" if heart is None or not alive else heart.slurm_error or "ok"
    seen_at = heart.snapshot_at if heart is not None else 0.0
    return HealthOut(
        ok=alive and database == "ok" and slurm == "ok",
        cluster=cluster,
        version=__version__,
        loop="unknown" if age is None else "alive" if alive else "silent",
        loop_age_seconds=age,
        mode=heart.mode if heart is not None else None,
        database=database,
        slurm=slurm,
        snapshot_age_seconds=max(0.0, now - seen_at) if seen_at else None,
        agents_connected=heart.agents_connected if heart is not None and alive else None,
        leader=leader,
    )


def _leader(row: Row, holder: str) -> LeaderOut:
    held = row.holder != NOBODY
    return LeaderOut(
        host=row.host if held else None,
        term=row.term,
        lease_age_seconds=max(0.0, row.age_seconds),
        here=held and row.holder == holder,
    )


def summary(cluster: str, view: View) -> ClusterOut:
    nodes = [entry.value.node for entry in view.nodes.entries]
    jobs = [entry.value for entry in view.allocations.entries]
    runs = [entry.value for entry in view.runs.entries if not entry.value.state.ended]
    open_ = [entry.value for entry in view.incidents.entries if not incident_ended(entry.value)]
    held = [job for job in jobs if job.allocation.state in _HOLDING]
    managed = {run.run_id for run in runs}
    return ClusterOut(
        cluster=cluster,
        mode=None,
        nodes=_counted(node.state for node in nodes),
        gpus=sum(node.gpus for node in nodes),
        gpus_up=sum(node.gpus for node in nodes if node.state is NodeState.UP),
        gpus_held=sum(job.allocation.gpus for job in held),
        gpus_managed=sum(j.allocation.gpus for j in held if j.allocation.job_id in managed),
        partitions=_partitions(nodes),
        runs=_counted(run.state for run in runs),
        jobs=_counted(job.allocation.state for job in jobs),
        incidents=_counted(incident.severity for incident in open_),
        waiting_for_a_person=sum(one.state is IncidentState.PERSON for one in open_),
        view=view.number,
    )


def _counted(states: Any) -> dict[str, int]:
    return dict(sorted(Counter(str(state) for state in states).items()))


def _partitions(nodes: list[Node]) -> list[PartitionOut]:
    members: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        for name in node.partitions:
            members[name].append(node)
    return [_partition(name, members[name]) for name in sorted(members)]


def _partition(name: str, nodes: list[Node]) -> PartitionOut:
    up = [node for node in nodes if node.state is NodeState.UP]
    return PartitionOut(
        name=name,
        nodes=len(nodes),
        nodes_up=len(up),
        gpus=sum(node.gpus for node in nodes),
        gpus_up=sum(node.gpus for node in up),
    )
