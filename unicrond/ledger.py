"""The ledger: every GPU-second that Slurm gave out, by job, node, account and cause. Pure.

A job holds nodes in spells; each spell is cut wherever its run's phase or one of its incidents
begins or ends, and each piece has one cause. So the pieces add up to allocation x time exactly:
times are whole microseconds, and a job's GPUs are dealt to its nodes one by one.

unmanaged   the job is no run of unicrond's
starting    its agents or its first ranks are not there yet
training    the node is one of a generation that runs
left out    the run trains, without this node
detection   from a fault's first sign until unicrond knew
decision    from then until it was decided what to do
transition  from then until ranks ran again
requeued    the run waits in Slurm's queue; what it holds meanwhile
unmended    an incident that nobody acts on: mode observe or paused, or left to a person
ending      the run is over, the job not yet

Work that is done again because it came after the last checkpoint counts as training: how much it
was is not known from outside.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from unicrond.model.incident import Incident, Severity
from unicrond.model.run import RunState

if TYPE_CHECKING:
    from db.spells import Held, Phase

MICROSECONDS = 1_000_000
NEVER = 1 << 62
CAUSES = (
    "training", "starting", "detection", "decision", "transition", "requeued", "left out",
    "unmended", "ending", "unmanaged",
)  # fmt: skip
LOST = frozenset(CAUSES) - {"training", "unmanaged"}


@dataclass(frozen=True, slots=True)
class Piece:
    """`amount`: GPU-microseconds. `kind`: of the incident behind it, "" where there is none.
    `run_id`: the job's own number where it is no companion of a run."""

    job_id: int
    run_id: int
    node: str
    user: str
    account: str
    cause: str
    kind: str
    amount: int


@dataclass(frozen=True, slots=True)
class _Fault:
    """An incident on the time line, in microseconds."""

    noticed: int
    known: int
    decided: int
    over: int
    kind: str

    def part(self, at: int) -> str:
        if at < self.known:
            return "detection"
        return "decision" if at < self.decided else "transition"


def pieces(
    held: Iterable[Held],
    phases: Mapping[int, Sequence[Phase]],
    incidents: Mapping[int, Sequence[Incident]],
    began: float,
    ended: float,
) -> Iterator[Piece]:
    """Of the time from `began` to `ended`, Unix seconds."""
    low, high = micro(began), micro(ended)
    lines: dict[int, _Line] = {}
    for spell in held:
        line = lines.get(spell.job_id)
        if line is None:
            line = lines[spell.job_id] = _line(spell.job_id, phases, incidents)
        first = max(low, micro(spell.began))
        last = min(high, NEVER if spell.ended is None else micro(spell.ended))
        if first < last and spell.nodes:
            yield from _of_spell(spell, line, first, last)


def micro(seconds: float) -> int:
    return round(seconds * MICROSECONDS)


def _of_spell(spell: Held, line: _Line, first: int, last: int) -> Iterator[Piece]:
    each, more = divmod(spell.gpus, len(spell.nodes))
    sums: defaultdict[tuple[str, str, str], int] = defaultdict(int)
    cuts = line.cuts(first, last)
    for start, stop in pairwise(cuts):
        cause, kind, members = line.cause(start)
        for index, node in enumerate(spell.nodes):
            told = cause if members is None or node in members else "left out"
            sums[node, told, kind] += (stop - start) * (each + (index < more))
    for (node, cause, kind), amount in sums.items():
        if amount:
            yield Piece(
                spell.job_id, line.run_id, node, spell.user, spell.account, cause, kind, amount
            )


def _line(
    job_id: int, phases: Mapping[int, Sequence[Phase]], incidents: Mapping[int, Sequence[Incident]]
) -> _Line:
    mine = phases.get(job_id, ())
    run_id = next((phase.base for phase in mine if phase.base), job_id)
    return _Line(run_id, mine, incidents.get(run_id, ()))


class _Line:
    """What happened to one job of a run, in order."""

    def __init__(self, run_id: int, phases: Sequence[Phase], incidents: Sequence[Incident]) -> None:
        self.run_id = run_id
        self._phases = sorted(phases, key=lambda phase: phase.began)
        self._begins = [micro(phase.began) for phase in self._phases]
        told = (one for one in incidents if one.severity is not Severity.NONE)
        self._faults = sorted((_fault(one) for one in told), key=lambda fault: fault.noticed)

    def cuts(self, first: int, last: int) -> list[int]:
        found = {first, last, *self._begins}
        for fault in self._faults:
            found |= {fault.noticed, fault.known, fault.decided, fault.over}
        return sorted(cut for cut in found if first <= cut <= last)

    def _phase(self, at: int) -> Phase | None:
        index = bisect_right(self._begins, at)
        return self._phases[index - 1] if index else None

    def cause(self, at: int) -> tuple[str, str, frozenset[str] | None]:
        """The cause, the incident's kind, and where only some nodes train, which."""
        if not self._phases:
            return "unmanaged", "", None
        phase = self._phase(at)
        fault = next((f for f in reversed(self._faults) if f.noticed <= at < f.over), None)
        kind = fault.kind if fault else ""
        match None if phase is None else RunState(phase.state):
            case None:
                return "starting", "", None
            case RunState.STARTING:
                return ("transition" if fault else "starting"), kind, None
            case RunState.HEALING:
                return (fault.part(at) if fault else "transition"), kind, None
            case RunState.REQUEUED:
                return "requeued", kind, None
            case RunState.RUNNING if fault is not None:
                part = fault.part(at)
                return ("unmended" if part == "transition" else part), kind, None
            case RunState.RUNNING:
                return "training", "", frozenset(phase.nodes if phase else ())
        return "ending", "", None


def _fault(incident: Incident) -> _Fault:
    known = micro(incident.opened_at)
    noticed = min(known, micro(incident.first_signal_at or incident.opened_at))
    over = micro(incident.closed_at) if incident.closed_at else NEVER
    decided = micro(incident.decided_at) if incident.decided_at else over
    return _Fault(noticed, known, max(known, decided), max(known, over), incident.kind)


@dataclass(slots=True)
class Row:
    """What one run, node, account, user or cause comes to, in GPU-microseconds."""

    key: str
    amount: int
    causes: dict[str, int]

    @property
    def lost(self) -> int:
        return sum(amount for cause, amount in self.causes.items() if cause in LOST)

    @property
    def goodput(self) -> float | None:
        """Of what runs held, the part that trained; None where there was no run."""
        managed = self.amount - self.causes.get("unmanaged", 0)
        return self.causes.get("training", 0) / managed if managed else None


KEYS: Mapping[str, Callable[[Piece], str]] = {
    "run": lambda piece: str(piece.run_id),
    "job": lambda piece: str(piece.job_id),
    "node": lambda piece: piece.node,
    "account": lambda piece: piece.account,
    "user": lambda piece: piece.user,
    "cause": lambda piece: piece.cause,
    "kind": lambda piece: piece.kind or "none",
}


def summed(found: Iterable[Piece], by: str) -> list[Row]:
    """Those that lost most first, then those that held most."""
    rows: dict[str, Row] = {}
    for piece in found:
        key = KEYS[by](piece)
        row = rows.setdefault(key, Row(key, 0, {}))
        row.amount += piece.amount
        row.causes[piece.cause] = row.causes.get(piece.cause, 0) + piece.amount
    return sorted(rows.values(), key=lambda row: (-row.lost, -row.amount, row.key))


def together(rows: Iterable[Row]) -> Row:
    """All of them as one."""
    whole = Row("all", 0, {})
    for row in rows:
        whole.amount += row.amount
        for cause, amount in row.causes.items():
            whole.causes[cause] = whole.causes.get(cause, 0) + amount
    return whole
