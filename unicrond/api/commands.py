"""Commands: checked here, carried out by the loop, noted in the audit log whatever came of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fastapi import APIRouter

from db.audit import Audited
from db.queries import Queries
from unicrond.api import rights
from unicrond.api.callers import Asking, Caller, Role
from unicrond.api.control import Control
from unicrond.api.errors import NotFound
from unicrond.api.models import (
    ModeIn,
    ModeOut,
    PageOut,
    ResizeIn,
    ResizeOut,
    ReviewGivenOut,
    ReviewIn,
    ShareIn,
    ShareOut,
)
from unicrond.api.places import After, Limit, Name, Number
from unicrond.api.reports import AuditOut
from unicrond.api.stories import seen_incident, seen_run
from unicrond.api.view import Viewer, heartbeat_of
from unicrond.errors import Refused, Unavailable, UnicronError
from unicrond.model.decision import Mode
from unicrond.model.incident import Proof
from unicrond.model.run import Run, RunState

log = logging.getLogger(__name__)


class Commands:
    """What each command needs: where to look things up, whom to tell, what to note."""

    def __init__(
        self, queries: Queries, viewer: Viewer, control: Control, now: Callable[[], float]
    ) -> None:
        self.queries, self.control = queries, control
        self._viewer, self.now = viewer, now

    def account(self, run: Run | None) -> str:
        """That the run's job is counted to, "" where that is not known now."""
        entries = self._viewer.current().allocations.entries if run else ()
        jobs = (entry.value.allocation for entry in entries)
        return next((job.account for job in jobs if run and job.job_id == run.run_id), "")

    @contextmanager
    def noted(self, caller: Caller, command: str, subject: str, why: str) -> Iterator[None]:
        """Refuses who has no name; notes the command when it is over."""
        refusal = ""
        try:
            if caller.role is Role.VIEWER:
                raise Refused(rights.STRANGER)
            yield
        except (UnicronError, NotFound) as error:
            refusal = str(error)
            raise
        finally:
            self._note(
                Audited(
                    self.now(), caller.user, str(caller.role), caller.via, caller.origin,
                    command, subject, why, refusal,
                )
            )  # fmt: skip

    def _note(self, entry: Audited) -> None:
        try:
            self.control.note(entry)
        except Unavailable as error:
            log.warning("audit: not stored (%s): %s", error, entry)


def routes(commands: Commands) -> APIRouter:
    router = APIRouter(tags=["commands"])
    _modes(router, commands)
    _shares(router, commands)
    _sizes(router, commands)
    _reviews(router, commands)
    _audit(router, commands.queries)
    return router


def _modes(router: APIRouter, commands: Commands) -> None:
    queries = commands.queries

    @router.post("/mode")
    def set_mode(caller: Asking, wanted: ModeIn) -> ModeOut:
        """Whether decisions are carried out, for the cluster or for one run."""
        subject = "cluster" if wanted.run_id is None else f"run {wanted.run_id}"
        with commands.noted(caller, f"mode {wanted.mode}", subject, wanted.why):
            run = None if wanted.run_id is None else seen_run(queries, wanted.run_id)
            heartbeat = heartbeat_of(queries)
            cluster: Mode | None = heartbeat.mode if heartbeat else None
            account = commands.account(run)
            if refusal := rights.refusal(caller, wanted.mode, run, cluster, account):
                raise Refused(refusal)
            commands.control.set_mode(wanted.mode, wanted.run_id, caller.user, wanted.why)
        return ModeOut(mode=wanted.mode, run_id=wanted.run_id)


def _shares(router: APIRouter, commands: Commands) -> None:
    @router.post("/runs/{run_id}/share")
    def set_share(caller: Asking, run_id: Number, wanted: ShareIn) -> ShareOut:
        """What a run's work is worth, and which nodes plans leave it in any case."""
        weight, floor = wanted.weight, wanted.floor_nodes
        with commands.noted(caller, "share", f"run {run_id}", wanted.why):
            run = seen_run(commands.queries, run_id)
            account = commands.account(run)
            if refusal := rights.share_refusal(caller, run, weight, floor, account):
                raise Refused(refusal)
            if run.state.ended:
                raise Refused(f"run {run_id} is over")
            commands.control.set_share(run_id, weight, floor, caller.user, wanted.why)
        return ShareOut(
            run_id=run_id,
            weight=run.weight if weight is None else weight,
            floor_nodes=run.floor_nodes if floor is None else floor,
        )


def _sizes(router: APIRouter, commands: Commands) -> None:
    @router.post("/runs/{run_id}/resize")
    def resize(caller: Asking, run_id: Number, wanted: ResizeIn) -> ResizeOut:
        """How many nodes a run is to have, within what its user allows. What comes of it, the run's
        story tells."""
        with commands.noted(caller, f"resize to {wanted.nodes}", f"run {run_id}", wanted.why):
            run = seen_run(commands.queries, run_id)
            if refusal := rights.resize_refusal(caller, run, wanted.nodes, commands.account(run)):
                raise Refused(refusal)
            if not run.min_nodes <= wanted.nodes <= run.max_nodes:
                raise Refused(
                    f"{run.user} allows run {run_id} {run.min_nodes} to {run.max_nodes} nodes"
                )
            if run.state is not RunState.RUNNING or run.assignment is None:
                raise Refused(f"run {run_id} is {run.state}: try again once it is running")
            commands.control.resize(run_id, wanted.nodes, caller.user, wanted.why)
        return ResizeOut(run_id=run_id, nodes=wanted.nodes, before=len(run.assignment.nodes))


def _reviews(router: APIRouter, commands: Commands) -> None:
    queries = commands.queries

    @router.post("/incidents/{incident_id}/review")
    def review(caller: Asking, incident_id: Number, given: ReviewIn) -> ReviewGivenOut:
        """Says whether an incident was one. The last word replaces the one before."""
        subject = f"incident {incident_id}"
        with commands.noted(caller, f"review {given.proof}", subject, given.why):
            incident, reviewed = seen_incident(queries, incident_id), queries.review(incident_id)
            run = queries.run(incident.run_id) if incident.run_id is not None else None
            account = commands.account(run)
            if refusal := rights.review_refusal(caller, incident, run, account):
                raise Refused(refusal)
            if reviewed is None:
                raise NotFound(f"{subject} was opened by no rule that keeps a record")
            official, proof = caller.role is Role.ADMIN, Proof(given.proof)
            commands.control.review(incident_id, proof, caller.user, official, given.why)
        return ReviewGivenOut(incident_id=incident_id, rule=reviewed.rule, proof=proof)


def _audit(router: APIRouter, queries: Queries) -> None:
    @router.get("/audit")
    def audit(
        caller: Asking, who: Name = "", after: After = "", limit: Limit = 100
    ) -> PageOut[AuditOut]:
        """Every command that was given, newest first; one's own, for operators everybody's."""
        if caller.role is Role.VIEWER:
            raise Refused("the audit log is shown to users by name: use the Unix socket")
        if caller.role < Role.OPERATOR:
            who = caller.user
        page = queries.audit(who=who, after=after, limit=limit)
        return PageOut(items=[AuditOut.model_validate(item) for item in page.items], next=page.next)
