"""What is written beside the loop's own state: observations, what was learned of them, plans.

None of it is needed to go on after a crash, so it is no part of a save; what is lost is learned
again. The loop's process writes it, as everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, delete, insert, select, update

from db import schema
from db.codec import CodecError, dumps, loads
from unicrond.model.decision import Decision
from unicrond.ports import JournalEntry

THROUGHPUT = "throughput"  # the kind of what is known of one run; its subject is the run
RELIABILITY, UPTIME, AWAY = "reliability", "uptime", "away"  # kinds of what is known of all
HEALS = "heals"  # what became of plans
CLUSTER = "cluster"  # their subject
MOST_WINDOWS = 32  # of one run at one size: the newest tell how it is now
MOST_PLANS = 200  # up to a quarter of a megabyte each; their decisions stay in the story


@dataclass(frozen=True, slots=True)
class Observation:
    """Mean seconds of an iteration in each window that was watched, oldest first."""

    run_id: int
    workers: int
    nodes: int
    at: float
    seconds: tuple[float, ...]
    iterations: int = 0  # watched in all


@dataclass(frozen=True, slots=True)
class Learned:
    """One thing that is known, as JSON: `kind` of it, and about what."""

    kind: str
    subject: str
    at: float
    doc: str


@dataclass(frozen=True, slots=True)
class Planned:
    """What the planner proposed, as JSON, and the kind of event that made it look."""

    at: float
    cause: str
    doc: str


@dataclass(frozen=True, slots=True)
class Knowledge:
    observations: tuple[Observation, ...] = ()
    learned: tuple[Learned, ...] = ()
    plans: tuple[Planned, ...] = ()
    decisions: tuple[Decision, ...] = ()  # of the plans, with their lines of the story
    journal: tuple[JournalEntry, ...] = ()


def write(connection: Connection, known: Knowledge) -> None:
    """All but decisions and journal, which the store writes as those of a save."""
    for observation in known.observations:
        _observe(connection, observation)
    for learned in known.learned:
        c = schema.knowledge.c
        same = (c.kind == learned.kind, c.subject == learned.subject)
        values = {"at": learned.at, "doc": learned.doc}
        if not connection.execute(update(schema.knowledge).where(*same).values(values)).rowcount:
            row = values | {"kind": learned.kind, "subject": learned.subject}
            connection.execute(insert(schema.knowledge).values(row))
    _plan(connection, known.plans)


def _observe(connection: Connection, new: Observation) -> None:
    """Beside what was seen of that run at that size before."""
    c = schema.observations.c
    same = (c.run_id == new.run_id, c.workers == new.workers)
    doc = connection.scalar(select(c.doc).where(*same))
    old = None if doc is None else _readable(doc)
    if doc is None:
        row = {"run_id": new.run_id, "workers": new.workers, "at": new.at, "doc": dumps(new)}
        connection.execute(insert(schema.observations).values(row))
        return
    if old is not None:
        seconds = (*old.seconds, *new.seconds)[-MOST_WINDOWS:]
        new = replace(new, seconds=seconds, iterations=old.iterations + new.iterations)
    values = {"at": new.at, "doc": dumps(new)}
    connection.execute(update(schema.observations).where(*same).values(values))


def _readable(doc: str) -> Observation | None:
    """None: it is measured anew, which is better than to stop at it."""
    try:
        return loads(Observation, doc)
    except CodecError:
        return None


def _plan(connection: Connection, plans: Sequence[Planned]) -> None:
    for plan in plans:
        row = {"at": plan.at, "cause": plan.cause, "doc": plan.doc}
        number = connection.execute(insert(schema.plans).values(row)).inserted_primary_key
        if number is not None:
            oldest = number[0] - MOST_PLANS
            connection.execute(delete(schema.plans).where(schema.plans.c.id <= oldest))
