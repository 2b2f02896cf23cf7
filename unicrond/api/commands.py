"""Commands: checked here, carried out by the loop."""

from __future__ import annotations

from collections.abc import Collection

from fastapi import APIRouter, Request

from db.queries import Queries
from unicrond.api import rights
from unicrond.api.control import Control
from unicrond.api.errors import NotFound
from unicrond.api.models import ModeIn, ModeOut, ReviewGivenOut, ReviewIn, ShareIn, ShareOut
from unicrond.api.places import Number
from unicrond.api.stories import seen_incident, seen_run
from unicrond.api.view import heartbeat_of
from unicrond.errors import Refused
from unicrond.model.decision import Mode
from unicrond.model.incident import Proof


def _who(request: Request) -> int:
    """The user at the other end of the Unix socket, as the kernel says."""
    uid: int | None = request.scope.get("peer_uid")
    if uid is None:
        raise Refused("commands come over the Unix socket: use unicronctl on unicrond's host")
    return uid


def routes(queries: Queries, control: Control, admins: Collection[str]) -> APIRouter:
    router = APIRouter(tags=["commands"])

    @router.post("/mode")
    def set_mode(request: Request, wanted: ModeIn) -> ModeOut:
        """Over the Unix socket only: the rights are those of the user who connects."""
        uid = _who(request)
        run = None if wanted.run_id is None else seen_run(queries, wanted.run_id)
        heartbeat = heartbeat_of(queries)
        cluster: Mode | None = heartbeat.mode if heartbeat else None
        if refusal := rights.refusal(uid, admins, wanted.mode, run, cluster):
            raise Refused(refusal)
        control.set_mode(wanted.mode, wanted.run_id, rights.user_name(uid), wanted.why)
        return ModeOut(mode=wanted.mode, run_id=wanted.run_id)

    @router.post("/runs/{run_id}/share")
    def set_share(request: Request, run_id: Number, wanted: ShareIn) -> ShareOut:
        """What a run's work is worth, and which nodes plans leave it in any case."""
        uid, run = _who(request), seen_run(queries, run_id)
        weight, floor = wanted.weight, wanted.floor_nodes
        if refusal := rights.share_refusal(uid, admins, run, weight, floor):
            raise Refused(refusal)
        if run.state.ended:
            raise Refused(f"run {run_id} is over")
        control.set_share(run_id, weight, floor, rights.user_name(uid), wanted.why)
        return ShareOut(
            run_id=run_id,
            weight=run.weight if weight is None else weight,
            floor_nodes=run.floor_nodes if floor is None else floor,
        )

    @router.post("/incidents/{incident_id}/review")
    def review(request: Request, incident_id: Number, given: ReviewIn) -> ReviewGivenOut:
        """Says whether an incident was one. The last word replaces the one before."""
        uid = _who(request)
        incident, reviewed = seen_incident(queries, incident_id), queries.review(incident_id)
        run = queries.run(incident.run_id) if incident.run_id is not None else None
        if refusal := rights.review_refusal(uid, admins, incident, run):
            raise Refused(refusal)
        if reviewed is None:
            raise NotFound(f"incident {incident_id} was opened by no rule that keeps a record")
        official, who = rights.is_admin(uid, admins), rights.user_name(uid)
        control.review(incident_id, Proof(given.proof), who, official, given.why)
        return ReviewGivenOut(incident_id=incident_id, rule=reviewed.rule, proof=Proof(given.proof))

    return router
