"""The lists: from the view of the present, and from the store for what is over and old."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Response
from starlette.concurrency import run_in_threadpool

from db.queries import Queries, SeenAllocation, SeenNode
from db.store import incident_ended
from unicrond.api.callers import Seeing, Sight
from unicrond.api.models import AllocationOut, IncidentOut, NodeOut, PageOut, RunOut
from unicrond.api.places import (
    After,
    Limit,
    Moment,
    Name,
    RunId,
    looked_through,
    name_place,
    number_place,
    page_of,
)
from unicrond.api.view import Listing, View, Viewer
from unicrond.errors import Refused
from unicrond.model.cluster import JobState, NodeState
from unicrond.model.incident import Incident, IncidentState, Severity
from unicrond.model.run import Run, RunState

T = TypeVar("T")


async def answered(
    listing: Listing[T], after: Any, limit: int, keep: Callable[[T], bool], current: bool,
    store: Callable[[], Any],
) -> Any:  # fmt: skip
    body = page_of(listing, after, limit, keep, current)
    if body is not None:
        return Response(body, media_type="application/json")
    return await run_in_threadpool(store)


def routes(queries: Queries, viewer: Viewer) -> APIRouter:
    router = APIRouter(tags=["state"])
    for add in (_runs, _incidents, _nodes, _allocations):
        add(router, queries, viewer)
    return router


def _runs(router: APIRouter, queries: Queries, viewer: Viewer) -> None:
    @router.get("/runs", response_model=PageOut[RunOut])
    async def runs(
        sight: Seeing,
        live: bool = False,
        user: Name = "",
        state: RunState | None = None,
        after: After = "",
        limit: Limit = 100,
    ) -> Any:
        """Runs that unicrond looks after or did, newest first."""

        def keep(run: Run) -> bool:
            return (
                not (live and run.state.ended)
                and user in ("", run.user)
                and state in (None, run.state)
                and sight.sees_run(run)
            )

        def store() -> PageOut[RunOut]:
            page = looked_through(
                lambda place, most: queries.runs(
                    live=live, user=user, state=state or "", after=place, limit=most
                ),
                after, limit, keep, lambda run: run.run_id,
            )  # fmt: skip
            return PageOut(items=[RunOut.of(run) for run in page.items], next=page.next)

        place, view = number_place(after), viewer.current()
        return await answered(view.runs, place, limit, keep, live, store)


def _incidents(router: APIRouter, queries: Queries, viewer: Viewer) -> None:
    @router.get("/incidents", response_model=PageOut[IncidentOut])
    async def incidents(
        sight: Seeing,
        open: bool = False,
        run_id: RunId = None,
        node: Name = "",
        kind: Name = "",
        severity: Severity | None = None,
        state: IncidentState | None = None,
        since: Moment = 0.0,
        after: After = "",
        limit: Limit = 100,
    ) -> Any:
        """What went wrong, newest first. `since`: opened then or later."""
        view = viewer.current()

        def keep(incident: Incident) -> bool:
            return (
                not (open and incident_ended(incident))
                and run_id in (None, incident.run_id)
                and node in ("", incident.root_node)
                and kind in ("", incident.kind)
                and severity in (None, incident.severity)
                and state in (None, incident.state)
                and incident.opened_at >= since
                and sees_incident(sight, view, incident)
            )

        def store() -> PageOut[IncidentOut]:
            page = looked_through(
                lambda place, most: queries.incidents(
                    open_=open, run_id=run_id, node=node, state=state or "", since=since,
                    after=place, limit=most,
                ),
                after, limit, keep, lambda incident: incident.incident_id,
            )  # fmt: skip
            return PageOut(items=[IncidentOut.of(one) for one in page.items], next=page.next)

        return await answered(view.incidents, number_place(after), limit, keep, open, store)


def sees_incident(sight: Sight, view: View, incident: Incident) -> bool:
    """One of a run is as private as the run, one of a node as the node."""
    if incident.run_id is None:
        return sight.nodes
    run = None if sight.jobs else view.run(incident.run_id)
    return sight.jobs or (run is not None and sight.sees_run(run))


def _nodes(router: APIRouter, queries: Queries, viewer: Viewer) -> None:
    @router.get("/nodes", response_model=PageOut[NodeOut])
    async def nodes(
        sight: Seeing,
        state: NodeState | None = None,
        partition: Name = "",
        switch: Name = "",
        after: After = "",
        limit: Limit = 1000,
    ) -> Any:
        """As Slurm last described them, by name."""
        if not sight.nodes:
            raise Refused("Slurm's PrivateData keeps nodes to operators and admins here")

        def keep(seen: SeenNode) -> bool:
            node = seen.node
            return (
                state in (None, node.state)
                and (not partition or partition in node.partitions)
                and switch in ("", node.switch)
            )

        listing = viewer.current().nodes
        return await answered(listing, name_place(after), limit, keep, True, lambda: None)


def _allocations(router: APIRouter, queries: Queries, viewer: Viewer) -> None:
    @router.get("/allocations", response_model=PageOut[AllocationOut])
    async def allocations(
        sight: Seeing,
        current: bool = True,
        user: Name = "",
        account: Name = "",
        partition: Name = "",
        state: JobState | None = None,
        node: Annotated[str, Query(max_length=255, description="only of the present")] = "",
        after: After = "",
        limit: Limit = 100,
    ) -> Any:
        """Every Slurm job with GPUs, newest first; `current=false`: also those that are over."""

        def keep(seen: SeenAllocation) -> bool:
            job = seen.allocation
            return (
                user in ("", job.user)
                and account in ("", job.account)
                and partition in ("", job.partition)
                and state in (None, job.state)
                and (not node or node in job.nodes)
                and sight.sees_job(job)
            )

        def store() -> PageOut[AllocationOut]:
            page = looked_through(
                lambda place, most: queries.allocations(
                    current=False, user=user, after=place, limit=most
                ),
                after, limit, keep, lambda seen: seen.row,
            )  # fmt: skip
            return PageOut(items=[AllocationOut.of(one) for one in page.items], next=page.next)

        place = number_place(after)
        if not current:
            return await run_in_threadpool(store)
        return await answered(viewer.current().allocations, place, limit, keep, True, store)
