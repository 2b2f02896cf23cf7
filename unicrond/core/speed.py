"""What agents tell of speed and losses, as incidents that a person hears of. Nothing here acts: a
run that is slow, or that learns nothing, is its user's to judge.

straggler            a rank's own time is over its peers', found again and again
slow-down            the run is over 1.1 x its own rate of before
NaN/loss spike       a rank's script told such losses
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from detectors.stragglers import Comparison, Finding
from detectors.verdict import Kind
from unicrond.core.cycle import Cycle
from unicrond.model.decision import ActionKind
from unicrond.model.events import AgentBeat
from unicrond.model.incident import Incident, IncidentState, Scope, Severity, Signal
from unicrond.model.run import Run

SLOWER = "slow-down"
MOST_OPEN = 8  # such incidents of one run


@dataclass(frozen=True, slots=True)
class Observation:
    kind: str
    rule: str
    at: float
    what: str
    node: str = ""
    rank: int | None = None


def on_beat(cycle: Cycle, run: Run, beat: AgentBeat) -> None:
    """Compares the ranks of the running generation. An agent speaks of its own ranks alone."""
    assignment = run.assignment
    if not beat.paces or assignment is None or run.healing is not None:
        return
    if beat.generation != run.generation:
        return
    known = cycle.state.speeds.get(run.run_id)
    if known is None or known.generation != run.generation:
        nodes = {slot.rank: slot.node for slot in assignment.slots}
        known = Comparison(run.generation, nodes)
        cycle.state.speeds[run.run_id] = known
    for rank, pace in beat.paces:
        if known.nodes.get(rank) == beat.node:
            for finding in known.take(rank, pace):
                _on_finding(cycle, run, finding, known.nodes)


def _on_finding(cycle: Cycle, run: Run, found: Finding, nodes: Mapping[int, str]) -> None:
    rank = found.rank
    kind = SLOWER if rank is None else str(Kind.STRAGGLER)
    if found.over:
        open_ = _open(cycle, run, kind, rank)
        if open_ is not None:
            cycle.close_incident(open_.incident_id, IncidentState.RESOLVED, "it is as fast again")
        return
    seconds = f"{found.seconds:.3g} s instead of {found.usual_seconds:.3g} s"
    times = f"{found.ratio:.2f} x as long ({seconds})"
    if rank is not None:
        node = nodes[rank]
        what = f"rank {rank} on {node} takes {times} of its own; its peers wait for it"
        _tell(cycle, run, Observation(kind, "straggler.own_time", cycle.now, what, node, rank))
        return
    what = f"an iteration takes {times}"
    cause = next((i for i in _observed(cycle, run) if i.kind == Kind.STRAGGLER), None)
    if cause is not None:
        cycle.note("signal", what, run, incident=cause.incident_id)
    else:
        _tell(cycle, run, Observation(kind, "iterations.slower", cycle.now, what))


def on_loss(cycle: Cycle, run: Run, signal: Signal) -> None:
    """Words of a user's process: only repeated, and not at length."""
    said = {name: str(signal.data.get(name, ""))[:20] for name in ("iteration", "loss", "usual")}
    nonsense = signal.data.get("not_a_number") is True
    what = "is {loss}" if nonsense else "is {loss}, {usual} was usual"
    text = f"rank {signal.rank} on {signal.node}: from train step {{iteration}} on its loss {what}"
    rule = "loss.not_a_number" if nonsense else "loss.spike"
    words = text.format(**said)
    _tell(cycle, run, Observation(Kind.NAN, rule, signal.at, words, signal.node, signal.rank))


def _open(cycle: Cycle, run: Run, kind: str, rank: int | None) -> Incident | None:
    """All ranks that tell of odd losses are one incident; each straggler is one of its own."""
    return next(
        (
            one
            for one in _observed(cycle, run)
            if one.kind == kind and (kind == Kind.NAN or one.root_rank == rank)
        ),
        None,
    )


def _observed(cycle: Cycle, run: Run) -> list[Incident]:
    return [i for i in cycle.state.incidents.of_run(run.run_id) if i.only_told]


def _tell(cycle: Cycle, run: Run, seen: Observation) -> None:
    known = _open(cycle, run, seen.kind, seen.rank)
    if known is not None:
        cycle.put_incident(replace(known, count=known.count + 1))
        return
    if len(_observed(cycle, run)) >= MOST_OPEN:
        return
    incident = cycle.open_incident(
        seen.kind,
        Severity.NONE,
        Scope.RUN if seen.rank is None else Scope.RANK,
        run,
        seen.what,
        node=seen.node,
        rank=seen.rank,
        noticed_at=seen.at,
        rule=seen.rule,
    )
    cycle.act(incident.incident_id, run, ActionKind.NOTIFY, seen.node, reason=seen.what)
