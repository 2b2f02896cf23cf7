"""Which nodes each job held and when, and what each run did with them: the ledger's raw material.

A spell is a stretch in which a job held the same nodes; a phase is one in which a run was in the
same state and generation, on the same nodes. Both are written when they change, by the one that
writes; what they add up to is unicrond/ledger's to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update

from db.codec import CodecError, dumps, loads
from db.schema import phases, spells
from db.watched import Difference, Written
from unicrond.model.cluster import Allocation, JobState
from unicrond.model.run import Run, RunState

_HOLDING = (JobState.RUNNING, JobState.SUSPENDED)


@dataclass(frozen=True, slots=True)
class Held:
    """A job on its nodes. `ended` None: it still holds them. Times are Unix seconds."""

    job_id: int
    user: str
    account: str
    partition: str
    name: str
    gpus: int
    nodes: tuple[str, ...]
    began: float
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class Phase:
    """What a run did from then on. `nodes`: of its generation, () when there was none. Each job of
    the run has phases of its own, under its own number; `base`: the run's, where it is a companion.
    """

    run_id: int
    began: float
    state: str
    generation: int
    nodes: tuple[str, ...]
    base: int = 0


def holds(allocation: Allocation) -> bool:
    return allocation.state in _HOLDING and bool(allocation.nodes) and allocation.gpus > 0


def write_spells(
    connection: Connection, written: Written, found: Difference, snapshot_at: float
) -> None:
    for old in found.gone:
        if holds(old.allocation):
            _end(connection, old.allocation.job_id, snapshot_at)
    for row in found.changed:
        before = written.allocations[row.allocation.job_id].allocation
        _change(connection, before, row.allocation, snapshot_at)
    for allocation in found.added:
        if holds(allocation):
            _begin(connection, allocation, allocation.start_time or snapshot_at, snapshot_at)


def _change(connection: Connection, old: Allocation, new: Allocation, at: float) -> None:
    same = (old.nodes, old.gpus, old.start_time) == (new.nodes, new.gpus, new.start_time)
    if same and holds(old) == holds(new):
        return
    if holds(old):
        told = new.start_time if holds(new) else new.end_time  # when it was started again, or ended
        _end(connection, new.job_id, told if old.start_time < told < at else at)
    if holds(new):
        resized = holds(old) and old.start_time == new.start_time
        _begin(connection, new, at if resized else new.start_time or at, at)


def _end(connection: Connection, job_id: int, at: float) -> None:
    c = spells.c
    over = (c.job_id == job_id) & c.ended.is_(None)
    connection.execute(update(spells).where(over, c.began <= at).values(ended=at))
    connection.execute(update(spells).where(over).values(ended=c.began))  # of no length


def _begin(connection: Connection, job: Allocation, began: float, at: float) -> None:
    """What the job held before is over: a job never holds two sets of nodes."""
    _end(connection, job.job_id, at)
    held = Held(
        job.job_id, job.user, job.account, job.partition, job.name, job.gpus, job.nodes,
        min(began, at),
    )  # fmt: skip
    row = {"job_id": job.job_id, "began": held.began, "doc": dumps(held)}
    connection.execute(insert(spells).values(row))


class Phases:
    """Notes what changes of each run, and nothing of what stays as it was."""

    def __init__(self) -> None:
        self._last: dict[int, Phase] = {}
        self._new: dict[int, Phase] = {}

    def write(self, connection: Connection, runs: Iterable[Run], at: float) -> None:
        """To be kept once it is sure that it was written."""
        self._new = {}
        for run in runs:
            for now in _now(run, at):
                self._new[now.run_id] = self._written(connection, now)

    def _written(self, connection: Connection, now: Phase) -> Phase:
        """The last phase of that job, which is this one if it differs from the one before."""
        before = self._last.get(now.run_id) or _last(connection, now.run_id)
        if before is not None and _same(before, now):
            return before
        row = {"run_id": now.run_id, "began": now.began, "doc": dumps(now)}
        connection.execute(insert(phases).values(row))
        return now

    def keep(self) -> None:
        self._last |= self._new
        self._new = {}
        self._last = {n: p for n, p in self._last.items() if not RunState(p.state).ended}


def _now(run: Run, at: float) -> Iterator[Phase]:
    nodes = run.assignment.nodes if run.assignment else ()
    yield Phase(run.run_id, at, run.state.value, run.generation, nodes)
    for companion in run.companions:
        if companion.job_id:
            job, state = companion.job_id, run.state.value
            yield Phase(job, at, state, run.generation, nodes, run.run_id)


def _same(a: Phase, b: Phase) -> bool:
    return (a.state, a.generation, a.nodes) == (b.state, b.generation, b.nodes)


def _last(connection: Connection, run_id: int) -> Phase | None:
    c = phases.c
    query = select(c.doc).where(c.run_id == run_id).order_by(c.id.desc()).limit(1)
    doc = connection.scalar(query)
    found = () if doc is None else readable_phases([doc])
    return found[0] if found else None


def readable_phases(docs: Sequence[str]) -> tuple[Phase, ...]:
    """What is damaged is left out: then it is unknown what the run did."""
    found = []
    for doc in docs:
        try:
            found.append(loads(Phase, doc))
        except CodecError:
            continue
    return tuple(found)
