"""What agents say, as events of the model, and orders as what goes down the wire. Pure.

Ages become Unix seconds on unicrond's clock here. An agent is the user's process: everything it
says is checked for form and bounds, and believed no further than the core decides.
"""

from __future__ import annotations

from typing import TypeGuard

from unicrond.errors import ProtocolError
from unicrond.link import fields
from unicrond.link.frames import Body
from unicrond.link.handshake import NO_RUN, Claim, Identity
from unicrond.link.workload import workload_from
from unicrond.model.decision import Action, ActionKey, Outcome, OutcomeState
from unicrond.model.events import AgentBeat, Registration
from unicrond.model.incident import Signal, SignalKind
from unicrond.model.pace import Pace
from unicrond.model.run import Assignment, Phase, Slot

MOST_NODES = 16_384
MOST_WEIGHT = 1e6
MOST_FLOPS = 1e27  # of an iteration, on one node
MOST_RANKS = 65_536
OLDEST_AGE_SECONDS = 86_400.0
LEAST_SECONDS = 1e-6
MOST_PACES = 1024
MOST_LOCAL_RANKS = 1024

_PHASES = {phase.value: phase for phase in Phase}
_FROM_AGENTS = {
    kind.value: kind
    for kind in (
        SignalKind.RANK_EXITED,
        SignalKind.EXCEPTION,
        SignalKind.SLOW,
        SignalKind.LOSS,
        SignalKind.PRINTED,
        SignalKind.HARDWARE,
        SignalKind.LEASE_EXPIRED,
        SignalKind.START_FAILED,
        SignalKind.RESTORED,
    )
}
_OUTCOMES = {state.value: state for state in OutcomeState}


def registration(body: Body, claim: Claim) -> Registration:
    identity = claim.identity
    named(body, identity)
    return Registration(
        run_id=identity.run_id,
        node=identity.node,
        agent=identity.agent,
        uid=claim.uid,
        name=fields.text(body, "name", 256),
        weight=fields.number(body, "weight", high=MOST_WEIGHT),
        min_nodes=fields.integer(body, "min_nodes", 1, MOST_NODES),
        max_nodes=fields.integer(body, "max_nodes", 1, MOST_NODES),
        ranks_per_node=fields.integer(body, "ranks_per_node", 1, MOST_LOCAL_RANKS),
        nodes=fields.names(body, "nodes", MOST_NODES),
        restarts=fields.integer(body, "restarts"),
        phase=_phase(body),
        generation=fields.integer(body, "generation"),
        stopped_generation=fields.integer(body, "stopped_generation", -1),
        assignment=assignment_from(body.get("assignment")),
        lease_seconds=fields.number(body, "lease_seconds") if "lease_seconds" in body else 0.0,
        workload=workload_from(body),
        regrouping=_regrouping(body),
        prepared=_prepared(body),
    )


def named(body: Body, identity: Identity) -> None:
    """A registration speaks for whom its sender proved to be."""
    if _named(body) != identity:
        raise ProtocolError(f"register names {_named(body)}, but {identity} was proved")


def beat(body: Body, identity: Identity, now: float) -> AgentBeat:
    peers = fields.ages(body, "peers", MOST_NODES)
    given = body.get("assignment")
    return AgentBeat(
        at=now,
        run_id=identity.run_id,
        node=identity.node,
        agent=identity.agent,
        phase=_phase(body),
        generation=fields.integer(body, "generation"),
        stopped_generation=fields.integer(body, "stopped_generation", -1),
        iteration=fields.integer(body, "iteration", -1),
        counted=fields.integer(body, "counted", 0) if "counted" in body else 0,
        flops=fields.number(body, "flops", high=MOST_FLOPS) if "flops" in body else 0.0,
        peers_heard={node: now - age for node, age in peers.items()},
        paces=paces_from(body.get("paces")),
        assignment=None if given is None else assignment_from(given),
        regrouping=_regrouping(body),
        prepared=_prepared(body),
    )


def _regrouping(body: Body) -> tuple[int, ...]:
    """Ranks; none where an older agent does not say."""
    given = body.get("regrouping", [])
    if type(given) is not list or len(given) > MOST_LOCAL_RANKS:
        raise ProtocolError(f"`regrouping` is not a list of at most {MOST_LOCAL_RANKS} ranks")
    if not all(type(rank) is int and 0 <= rank <= MOST_RANKS for rank in given):
        raise ProtocolError("`regrouping` holds something that is no rank")
    return tuple(given)


def _prepared(body: Body) -> tuple[str, ...]:
    given = body.get("prepared", [])
    if type(given) is not list or len(given) > MOST_LOCAL_RANKS:
        raise ProtocolError(f"`prepared` is not a list of at most {MOST_LOCAL_RANKS} members")
    if not all(type(name) is str and len(name) <= 256 for name in given):
        raise ProtocolError("`prepared` holds something that is no member")
    return tuple(given)


def paces_from(value: object) -> tuple[tuple[int, Pace], ...]:
    """Rank and pace; what makes no sense is left out, as it is worth no broken connection."""
    found = []
    for row in value[:MOST_PACES] if type(value) is list else ():
        if type(row) is not list or len(row) != 4:
            continue
        rank, window, seconds, own = row
        if type(rank) is int and type(window) is int and _is_time(seconds):
            found.append((rank, Pace(window, seconds, own if _is_time(own) else None)))
    return tuple(found)


def _is_time(value: object) -> TypeGuard[float]:
    return type(value) is float and LEAST_SECONDS < value < OLDEST_AGE_SECONDS


def signal(body: Body, identity: Identity, now: float) -> Signal | None:
    """A signal about the agent's own node: it cannot speak for another. None: of no kind we know,
    so that a newer agent's spool does not stick at it."""
    kind = _FROM_AGENTS.get(fields.text(body, "kind", 100))
    of_node = identity.run_id == NO_RUN
    if kind is None or (of_node and kind is not SignalKind.HARDWARE):
        return None
    return Signal(
        at=now - fields.number(body, "age", high=OLDEST_AGE_SECONDS),
        kind=kind,
        run_id=None if of_node else identity.run_id,
        node=identity.node,
        rank=None if body.get("rank") is None else fields.integer(body, "rank", 0, MOST_RANKS),
        member=fields.text(body, "member", 256),
        generation=fields.integer(body, "generation"),
        text=fields.text(body, "text"),
        data=fields.mapping(body, "data"),
    )


def outcome(body: Body, now: float) -> Outcome:
    key = fields.mapping(body, "key")
    state = _OUTCOMES.get(fields.text(body, "state", 100))
    if state is None:
        raise ProtocolError(f"an outcome is not {body.get('state')!r}")
    return Outcome(
        key=ActionKey(
            incident_id=fields.integer(key, "incident_id"),
            generation=fields.integer(key, "generation"),
            ordinal=fields.integer(key, "ordinal"),
        ),
        at=now,
        state=state,
        detail=fields.text(body, "detail"),
        data=fields.mapping(body, "data"),
    )


def order(action: Action) -> Body:
    key = action.key
    args = dict(action.args)
    if action.assignment is not None:
        args["assignment"] = assignment_to(action.assignment)
    return {
        "type": "order",
        "key": {
            "incident_id": key.incident_id,
            "generation": key.generation,
            "ordinal": key.ordinal,
        },
        "kind": str(action.kind.value),
        "args": args,
    }


def assignment_to(assignment: Assignment) -> Body:
    """Slots as lists: an assignment of 10,000 ranks stays below the longest frame."""
    slots = [[slot.rank, slot.member, slot.node, slot.local_rank] for slot in assignment.slots]
    return {"generation": assignment.generation, "order": assignment.order, "slots": slots}


def assignment_from(value: object) -> Assignment | None:
    """None stays None."""
    if value is None:
        return None
    body = fields.mapping({"assignment": value}, "assignment")
    slots = body.get("slots")
    if type(slots) is not list or len(slots) > MOST_RANKS:
        raise ProtocolError(f"`slots` is not a list of at most {MOST_RANKS}")
    return Assignment(
        generation=fields.integer(body, "generation"),
        order=fields.text(body, "order", 256),
        slots=tuple(map(_slot, slots)),
    )


def _slot(value: object) -> Slot:
    if type(value) is not list or len(value) != 4:
        raise ProtocolError("a slot is not [rank, member, node, local_rank]")
    body = dict(zip(("rank", "member", "node", "local_rank"), value, strict=True))
    return Slot(
        rank=fields.integer(body, "rank", 0, MOST_RANKS),
        member=fields.text(body, "member", 256),
        node=fields.name(body, "node"),
        local_rank=fields.integer(body, "local_rank", 0, MOST_LOCAL_RANKS),
    )


def _phase(body: Body) -> Phase:
    try:
        return _PHASES[body["phase"]]
    except (KeyError, TypeError) as error:
        raise ProtocolError("`phase` is none that we know") from error


def _named(body: Body) -> Identity:
    return Identity(
        fields.integer(body, "run_id"), fields.name(body, "node"), fields.name(body, "agent")
    )
