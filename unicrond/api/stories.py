"""One thing at a time, with its story: runs, incidents, nodes, decisions, rules."""

from __future__ import annotations

import re

from fastapi import APIRouter

from db.queries import Page, Queries, StoryLine
from db.store import incident_ended
from detectors.trust import Ledger, bar_of, catalogue
from unicrond.api.callers import Seeing, Sight
from unicrond.api.errors import NotFound
from unicrond.api.models import (
    ActOut,
    DecidedOut,
    DetectorOut,
    IncidentOut,
    IncidentStoryOut,
    NodeOut,
    NodeStoryOut,
    PageOut,
    ReviewOut,
    RunOut,
    StoryLineOut,
    WhyOut,
)
from unicrond.api.places import After, Limit, Number, RunId
from unicrond.api.view import Viewer
from unicrond.errors import Refused
from unicrond.model.cluster import Node
from unicrond.model.incident import Incident, Review
from unicrond.model.run import Run

_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_INCIDENT = re.compile(r"i(\d{1,18})", re.ASCII)
_UNSEEN = "Slurm's PrivateData keeps it to its owner, operators and admins here"


def routes(queries: Queries, viewer: Viewer) -> APIRouter:
    router = APIRouter(tags=["stories"])
    _of_one(router, queries)
    _of_nodes(router, queries, viewer)
    _choices(router, queries)
    return router


def _of_one(router: APIRouter, queries: Queries) -> None:
    @router.get("/runs/{run_id}")
    def run(run_id: Number, sight: Seeing) -> RunOut:
        return RunOut.of(seen_run(queries, run_id, sight))

    @router.get("/incidents/{incident_id}")
    def incident(incident_id: Number, sight: Seeing) -> IncidentStoryOut:
        """With its evidence, its decisions, its actions and its timeline."""
        found, review = seen_incident(queries, incident_id, sight), queries.review(incident_id)
        lines = queries.story_of_incident(incident_id, limit=1000).items
        decisions = queries.decisions(incident_id=incident_id).items
        return IncidentStoryOut(
            **IncidentOut.of(found).model_dump(),
            evidence=found.cause_text,
            review=ReviewOut.model_validate(review) if review else None,
            decisions=[DecidedOut.told(decision) for decision in reversed(decisions)],
            actions=[ActOut.of(act) for act in queries.acts(incident_id)],
            timeline=[StoryLineOut.of(line) for line in lines],
        )

    @router.get("/why/{subject}")
    def why(subject: str, sight: Seeing, after: After = "", limit: Limit = 200) -> WhyOut:
        """The story of a run (its number), an incident (i12) or a node (its name)."""
        title, summary, page = _why(queries, subject, after, limit, sight)
        lines = [StoryLineOut.of(line) for line in page.items]
        return WhyOut(subject=title, summary=summary, lines=lines, next=page.next)


def _of_nodes(router: APIRouter, queries: Queries, viewer: Viewer) -> None:
    @router.get("/nodes/{name}")
    def node(name: str, sight: Seeing) -> NodeStoryOut:
        """With who runs there, and what is wrong there."""
        if not sight.nodes:
            raise Refused(f"node {name}: {_UNSEEN}")
        view = viewer.current()
        found = view.nodes.at(name)
        if found is None:
            raise NotFound(f"{name}: no node of that name")
        runs = [e.value for e in view.runs.entries if not e.value.state.ended]
        held = [e.value.allocation for e in view.allocations.entries]
        open_ = [e.value for e in view.incidents.entries if not incident_ended(e.value)]
        return NodeStoryOut(
            **NodeOut.of(found.value).model_dump(),
            run_ids=[r.run_id for r in runs if name in r.nodes and sight.sees_run(r)],
            job_ids=[a.job_id for a in held if name in a.nodes and sight.sees_job(a)],
            incidents=[IncidentOut.of(one) for one in open_ if one.root_node == name],
        )


def _choices(router: APIRouter, queries: Queries) -> None:
    @router.get("/decisions")
    def decisions(
        sight: Seeing,
        run_id: RunId = None,
        incident_id: RunId = None,
        after: After = "",
        limit: Limit = 100,
    ) -> PageOut[DecidedOut]:
        """What was decided, what else was weighed and at what price, newest first."""
        if not sight.jobs:
            if run_id is None:
                raise Refused(f"decisions: {_UNSEEN}; name a run of your own with run_id")
            seen_run(queries, run_id, sight)
        page = queries.decisions(run_id=run_id, incident_id=incident_id, after=after, limit=limit)
        return PageOut(items=[DecidedOut.told(item) for item in page.items], next=page.next)

    @router.get("/detectors")
    def detectors() -> PageOut[DetectorOut]:
        """Every rule that can open an incident, by name, and how far it is believed."""
        ledger = Ledger(queries.reviews())
        rules = sorted({*catalogue(), *ledger.rules()})
        return PageOut(items=[_detector(rule, ledger) for rule in rules], next=None)


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


def seen_run(queries: Queries, run_id: int, sight: Sight | None = None) -> Run:
    run = queries.run(run_id)
    if run is None:
        raise NotFound(f"run {run_id} is not known: was it submitted with unicron-run?")
    if sight is not None and not sight.sees_run(run):
        raise Refused(f"run {run_id}: {_UNSEEN}")
    return run


def seen_incident(queries: Queries, incident_id: int, sight: Sight | None = None) -> Incident:
    incident = queries.incident(incident_id)
    if incident is None:
        raise NotFound(f"incident {incident_id} is not known")
    if sight is None or (sight.jobs and sight.nodes):
        return incident
    run = queries.run(incident.run_id) if incident.run_id is not None else None
    if not (sight.nodes if incident.run_id is None else run is not None and sight.sees_run(run)):
        raise Refused(f"incident {incident_id}: {_UNSEEN}")
    return incident


def _why(
    queries: Queries, subject: str, after: str, limit: int, sight: Sight
) -> tuple[str, str, Page[StoryLine]]:
    if _NUMBER.fullmatch(subject):
        run = seen_run(queries, int(subject), sight)
        story = queries.story_of_run(run.run_id, after, limit)
        return f"run {run.run_id}", _run_summary(run), story
    node = queries.node(subject)
    if node is None and (match := _INCIDENT.fullmatch(subject)):
        incident = seen_incident(queries, int(match[1]), sight)
        story = queries.story_of_incident(incident.incident_id, after, limit)
        review = queries.review(incident.incident_id)
        return f"incident {incident.incident_id}", _incident_summary(incident, review), story
    if not (sight.nodes and sight.jobs):
        raise Refused(f"node {subject}: {_UNSEEN}")
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
