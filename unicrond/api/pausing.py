"""Pauses beside the mode: a partition, a kind of action, notices. The switch of all is the mode."""

from __future__ import annotations

import re

from fastapi import APIRouter

from db.queries import Queries
from db.store import PAUSES_KEY, pauses_of
from unicrond.api.callers import Asking, Role
from unicrond.api.commands import Commands
from unicrond.api.errors import NotFound
from unicrond.api.models import PageOut
from unicrond.api.reports import NodeAskedOut, PauseIn, PauseOut, WhyIn
from unicrond.core.guards import OUR_REASON
from unicrond.core.pauses import KEPT, PLAN
from unicrond.errors import BadInput, Refused
from unicrond.model.decision import ActionKind
from unicrond.model.pause import MOST_PAUSES, Pause, PauseScope, paused

_NOTICES = re.compile(r"all|run \d{1,18}|incident \d{1,18}|node \S{1,64}", re.ASCII)
PAUSABLE = sorted([PLAN, *(kind.value for kind in ActionKind if kind not in KEPT)])


def routes(commands: Commands) -> APIRouter:
    router = APIRouter(tags=["commands"])
    queries = commands.queries

    @router.get("/pauses")
    def pauses() -> PageOut[PauseOut]:
        """What is paused now beside the mode, in the order in which it was."""
        return PageOut(items=[PauseOut.model_validate(p) for p in held(queries)], next=None)

    @router.post("/pause")
    def pause(caller: Asking, wanted: PauseIn) -> PauseOut:
        """Nothing is carried out in that partition, or of that kind, until it is unpaused."""
        return _set(commands, caller, wanted, True)

    @router.post("/unpause")
    def unpause(caller: Asking, wanted: PauseIn) -> PauseOut:
        """What was only observed meanwhile is decided again."""
        return _set(commands, caller, wanted, False)

    @router.post("/nodes/{name}/drain")
    def drain(caller: Asking, name: str, wanted: WhyIn) -> NodeAskedOut:
        """Slurm starts no new job there; in mode active runs leave it."""
        return _node(commands, caller, name, True, wanted.why)

    @router.post("/nodes/{name}/resume")
    def resume(caller: Asking, name: str, wanted: WhyIn) -> NodeAskedOut:
        """Gives a node back that unicrond drained; what others drained is theirs to give back."""
        return _node(commands, caller, name, False, wanted.why)

    return router


def _node(commands: Commands, caller: Asking, name: str, drain: bool, why: str) -> NodeAskedOut:
    with commands.noted(caller, "drain" if drain else "resume", f"node {name}", why):
        if caller.role < Role.ADMIN:
            raise Refused("only admins may drain nodes or give them back, as in Slurm")
        node = commands.queries.node(name)
        if node is None:
            raise NotFound(f"{name}: no node of that name")
        if not drain and not node.reason.startswith(OUR_REASON):
            raise Refused(f"{name} was not drained by unicrond: use scontrol")
        if drain and node.reason:
            raise Refused(f"{name} is out of service already: {node.reason}")
        commands.control.node(name, drain, caller.user, why)
    return NodeAskedOut(node=name, state=node.state)


def held(queries: Queries) -> tuple[Pause, ...]:
    """Raises StoreUnavailable."""
    return pauses_of(queries.meta(PAUSES_KEY))


def _set(commands: Commands, caller: Asking, wanted: PauseIn, on: bool) -> PauseOut:
    subject = f"{wanted.scope} {wanted.value}"
    with commands.noted(caller, "pause" if on else "unpause", subject, wanted.why):
        if caller.role < Role.OPERATOR:
            raise Refused("only operators and admins may pause more than a run of their own")
        if wanted.scope is PauseScope.ACTION and wanted.value not in PAUSABLE:
            raise BadInput(f"value: {wanted.value} cannot be paused; {', '.join(PAUSABLE)} can")
        if wanted.scope is PauseScope.NOTICE and not _NOTICES.fullmatch(wanted.value):
            raise BadInput("value: write all, run 4711, node n2 or incident 12")
        now = held(commands.queries)
        if on and len(now) >= MOST_PAUSES and not paused(now, wanted.scope, wanted.value):
            raise Refused(f"{MOST_PAUSES} pauses hold already: end one, or pause the cluster")
        made = Pause(wanted.scope, wanted.value, commands.now(), caller.user, wanted.why)
        commands.control.pause(made, on)
    return PauseOut.model_validate(made)
