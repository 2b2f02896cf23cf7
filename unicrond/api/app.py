"""The routes. Everything is read from the store; the one command goes to the loop."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection
from typing import Annotated

from fastapi import APIRouter, FastAPI, Path, Query, Request

from db.codec import CodecError, decode
from db.queries import Page, Queries, StoryLine
from detectors.trust import Ledger, bar_of, catalogue
from unicrond import __version__
from unicrond.api import errors, knowledge, rights, web
from unicrond.api.control import Control
from unicrond.api.errors import NotFound
from unicrond.api.heartbeat import HEARTBEAT_KEY, SILENT_AFTER_SECONDS, Heartbeat
from unicrond.api.models import (
    ActOut,
    AllocationOut,
    DetectorOut,
    HealthOut,
    IncidentOut,
    IncidentStoryOut,
    ModeIn,
    ModeOut,
    NodeOut,
    PageOut,
    ReviewGivenOut,
    ReviewIn,
    ReviewOut,
    RunOut,
    ShareIn,
    ShareOut,
    StoryLineOut,
    WhyOut,
)
from unicrond.errors import Refused, StoreUnavailable
from unicrond.model.cluster import Node
from unicrond.model.decision import Mode
from unicrond.model.incident import Incident, Proof, Review
from unicrond.model.run import Run

After = Annotated[str, Query(max_length=300, description="`next` of the page before")]
Limit = Annotated[int, Query(ge=1, le=1000)]
Number = Annotated[int, Path(ge=0, lt=2**63)]
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_INCIDENT = re.compile(r"i(\d{1,18})", re.ASCII)


def create_app(
    queries: Queries,
    control: Control,
    *,
    cluster: str = "",
    admins: Collection[str] = (),
    now: Callable[[], float] = time.time,
) -> FastAPI:
    app = FastAPI(
        title="unicrond", version=__version__, openapi_url="/v1/openapi.json", docs_url=None,
        redoc_url=None,
    )  # fmt: skip
    errors.install(app)
    for router in (
        _state(queries, cluster, now),
        _lists(queries),
        _stories(queries),
        knowledge.routes(queries),
        _commands(queries, control, admins),
    ):
        app.include_router(router, prefix="/v1", responses=errors.RESPONSES)
    app.include_router(web.routes())
    return app


def _state(queries: Queries, cluster: str, now: Callable[[], float]) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/health")
    def health() -> HealthOut:
        """Whether unicrond does its work. What is not known is null or "unknown"."""
        try:
            queries.check()
            heartbeat, database = _heartbeat(queries), "ok"
        except StoreUnavailable as error:
            heartbeat, database = None, str(error)
        return _health(cluster, database, heartbeat, now())

    return router


def _heartbeat(queries: Queries) -> Heartbeat | None:
    data = queries.meta(HEARTBEAT_KEY)
    try:
        return None if data is None else decode(Heartbeat, data)
    except CodecError:
        return None


def _health(cluster: str, database: str, heart: Heartbeat | None, now: float) -> HealthOut:
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
    )


def _lists(queries: Queries) -> APIRouter:
    router = APIRouter(tags=["state"])

    @router.get("/allocations")
    def allocations(
        current: bool = True, user: str = "", after: After = "", limit: Limit = 100
    ) -> PageOut[AllocationOut]:
        """Every Slurm job with GPUs, newest first; `current=false`: also those that are over."""
        page = queries.allocations(current=current, user=user, after=after, limit=limit)
        return PageOut(items=[AllocationOut.of(item) for item in page.items], next=page.next)

    @router.get("/runs")
    def runs(
        live: bool = False, user: str = "", after: After = "", limit: Limit = 100
    ) -> PageOut[RunOut]:
        """Runs that unicrond looks after or did, newest first."""
        page = queries.runs(live=live, user=user, after=after, limit=limit)
        return PageOut(items=[RunOut.of(item) for item in page.items], next=page.next)

    @router.get("/runs/{run_id}")
    def run(run_id: Number) -> RunOut:
        return RunOut.of(_run(queries, run_id))

    @router.get("/incidents")
    def incidents(
        open: bool = False,
        run_id: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
        after: After = "",
        limit: Limit = 100,
    ) -> PageOut[IncidentOut]:
        """Newest first."""
        page = queries.incidents(open_=open, run_id=run_id, after=after, limit=limit)
        items = [IncidentOut.model_validate(item) for item in page.items]
        return PageOut(items=items, next=page.next)

    @router.get("/nodes")
    def nodes(after: After = "", limit: Limit = 1000) -> PageOut[NodeOut]:
        """As Slurm last described them, by name."""
        page = queries.nodes(after=after, limit=limit)
        return PageOut(items=[NodeOut.of(item) for item in page.items], next=page.next)

    @router.get("/detectors")
    def detectors() -> PageOut[DetectorOut]:
        """Every rule that can open an incident, by name, and how far it is believed."""
        ledger = Ledger(queries.reviews())
        rules = sorted({*catalogue(), *ledger.rules()})
        return PageOut(items=[_detector(rule, ledger) for rule in rules], next=None)

    return router


def _detector(rule: str, ledger: Ledger) -> DetectorOut:
    bar, record = bar_of(rule), ledger.whole(rule)
    acts = ledger.seen_by(rule, "").clears(bar)
    users = [u for u in ledger.owners(rule) if acts and not ledger.seen_by(rule, u).clears(bar)]
    return DetectorOut(
        rule=rule,
        kind=catalogue().get(rule),
        needs=bar.needs,
        credit=bar.credit,
        confirmed=record.confirmed,
        refuted=record.refuted,
        undecided=record.undecided,
        acts=acts,
        observes_for=users,
    )


def _stories(queries: Queries) -> APIRouter:
    router = APIRouter(tags=["stories"])

    @router.get("/incidents/{incident_id}")
    def incident(incident_id: Number) -> IncidentStoryOut:
        """With its actions and its timeline."""
        found, review = _incident(queries, incident_id), queries.review(incident_id)
        lines = queries.story_of_incident(incident_id, limit=1000).items
        return IncidentStoryOut(
            **IncidentOut.model_validate(found).model_dump(),
            review=ReviewOut.model_validate(review) if review else None,
            actions=[ActOut.of(act) for act in queries.acts(incident_id)],
            timeline=[StoryLineOut.of(line) for line in lines],
        )

    @router.get("/why/{subject}")
    def why(subject: str, after: After = "", limit: Limit = 200) -> WhyOut:
        """The story of a run (its number), an incident (i12) or a node (its name)."""
        title, summary, page = _why(queries, subject, after, limit)
        lines = [StoryLineOut.of(line) for line in page.items]
        return WhyOut(subject=title, summary=summary, lines=lines, next=page.next)

    return router


def _run(queries: Queries, run_id: int) -> Run:
    run = queries.run(run_id)
    if run is None:
        raise NotFound(f"run {run_id} is not known: was it submitted with unicron-run?")
    return run


def _incident(queries: Queries, incident_id: int) -> Incident:
    incident = queries.incident(incident_id)
    if incident is None:
        raise NotFound(f"incident {incident_id} is not known")
    return incident


def _why(
    queries: Queries, subject: str, after: str, limit: int
) -> tuple[str, str, Page[StoryLine]]:
    if _NUMBER.fullmatch(subject):
        run = _run(queries, int(subject))
        story = queries.story_of_run(run.run_id, after, limit)
        return f"run {run.run_id}", _run_summary(run), story
    node = queries.node(subject)
    if node is None and (match := _INCIDENT.fullmatch(subject)):
        incident = _incident(queries, int(match[1]))
        story = queries.story_of_incident(incident.incident_id, after, limit)
        review = queries.review(incident.incident_id)
        return f"incident {incident.incident_id}", _incident_summary(incident, review), story
    story = queries.story_of_node(subject, after, limit)
    if node is None and not story.items:
        raise NotFound(
            f"{subject}: no node of that name; a run is asked for by number, an incident as i12"
        )
    return f"node {subject}", _node_summary(node), story


def _node_summary(node: Node | None) -> str:
    if node is None:
        return "Slurm does not list it"
    return f"{node.state}: {node.reason}" if node.reason else node.state


def _run_summary(run: Run) -> str:
    where = f", {run.assignment.world_size} ranks" if run.assignment else ""
    reason = f": {run.end_reason}" if run.end_reason else ""
    return f"{run.name} of {run.user}: {run.state}, generation {run.generation}{where}{reason}"


def _incident_summary(incident: Incident, review: Review | None) -> str:
    words = f"{incident.severity} {incident.kind}, {incident.state}: {incident.summary}"
    return f"{words} (opened by rule {_judged(review)})" if review else words


def _judged(review: Review) -> str:
    by = f" by {review.by}" if review.by else ""
    return f"{review.rule}, {review.proof}{by}{f': {review.reason}' if review.reason else ''}"


def _who(request: Request) -> int:
    """The user at the other end of the Unix socket, as the kernel says."""
    uid: int | None = request.scope.get("peer_uid")
    if uid is None:
        raise Refused("commands come over the Unix socket: use unicronctl on unicrond's host")
    return uid


def _commands(queries: Queries, control: Control, admins: Collection[str]) -> APIRouter:
    router = APIRouter(tags=["commands"])

    @router.post("/mode")
    def set_mode(request: Request, wanted: ModeIn) -> ModeOut:
        """Over the Unix socket only: the rights are those of the user who connects."""
        uid = _who(request)
        run = None if wanted.run_id is None else _run(queries, wanted.run_id)
        heartbeat = _heartbeat(queries)
        cluster: Mode | None = heartbeat.mode if heartbeat else None
        if refusal := rights.refusal(uid, admins, wanted.mode, run, cluster):
            raise Refused(refusal)
        control.set_mode(wanted.mode, wanted.run_id, rights.user_name(uid), wanted.why)
        return ModeOut(mode=wanted.mode, run_id=wanted.run_id)

    @router.post("/runs/{run_id}/share")
    def set_share(request: Request, run_id: Number, wanted: ShareIn) -> ShareOut:
        """What a run's work is worth, and which nodes plans leave it in any case."""
        uid, run = _who(request), _run(queries, run_id)
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
        incident, reviewed = _incident(queries, incident_id), queries.review(incident_id)
        run = queries.run(incident.run_id) if incident.run_id is not None else None
        if refusal := rights.review_refusal(uid, admins, incident, run):
            raise Refused(refusal)
        if reviewed is None:
            raise NotFound(f"incident {incident_id} was opened by no rule that keeps a record")
        official, who = rights.is_admin(uid, admins), rights.user_name(uid)
        control.review(incident_id, Proof(given.proof), who, official, given.why)
        return ReviewGivenOut(incident_id=incident_id, rule=reviewed.rule, proof=Proof(given.proof))

    return router
