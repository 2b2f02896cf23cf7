"""What became of incidents: the record by which rules are believed (detectors/trust.py).

what happened, and asked for a restart alone ──────────────> confirmed as it is told
Slurm or a probe says that the node is down ───────────────> confirmed
the rank that raised it, or stood still, ends by itself ───> confirmed
any rank ends while the incident is only observed ─────────> confirmed
the node is heard before its lease was over ───────────────> refuted
training goes on although it was said to stand still ──────> refuted
a restart helped where none was said to help ──────────────> refuted; it failed the same: confirmed
a person says so ──────────────────────────────────────────> that, whatever else is seen
"""

from __future__ import annotations

from dataclasses import replace

from detectors import trust
from unicrond.core.cycle import Cycle
from unicrond.core.guards import lease_of
from unicrond.core.state import State
from unicrond.model.cluster import NodeState
from unicrond.model.events import ReviewGiven
from unicrond.model.incident import Incident, IncidentState, Proof, Review, Severity
from unicrond.model.run import Loss, Run, RunState

LATE_STEP_SECONDS = 2.0  # one that was complete before may be told so much later


def held(state: State, rule: str, run: Run | None) -> str:
    """Why nothing is ordered on this rule's word, "" where it acts. Without a run: on a node."""
    return trust.held(rule, state.ledger.seen_by(rule, run.user if run else ""))


def outcome(cycle: Cycle, incident_id: int, proof: Proof, why: str, last: bool = False) -> None:
    """What the world shows: never over a person, and over a confirmation if it comes `last`."""
    review = cycle.state.ledger.of(incident_id)
    if review is None or review.by or review.proof is proof:
        return
    if review.proof is Proof.CONFIRMED and not last:
        return
    cycle.put_review(replace(review, proof=proof, at=cycle.now, reason=why))
    _tell(cycle, review, f"{review.rule} {proof}: {why}")


def on_review(cycle: Cycle, event: ReviewGiven) -> None:
    review = cycle.state.ledger.of(event.incident_id)
    why = f": {event.reason}" if event.reason else ""
    if review is None:
        text = f"{event.who} called it {event.proof}, which is too old to count{why}"
        cycle.note("note", text, incident=event.incident_id)
        return
    owner = "" if event.official else review.owner or event.who
    cycle.put_review(
        replace(review, proof=event.proof, at=event.at, owner=owner, by=event.who,
                reason=event.reason)
    )  # fmt: skip
    _tell(cycle, review, f"{review.rule} {event.proof} by {event.who}{why}")


def _tell(cycle: Cycle, review: Review, words: str) -> None:
    run = cycle.state.runs.get(review.run_id) if review.run_id is not None else None
    cycle.note("note", words, run, incident=review.incident_id)


def look(cycle: Cycle) -> None:
    """Once a tick: what the world shows of incidents that are open, and of doubted restarts."""
    for incident in tuple(cycle.state.incidents.values()):
        review = cycle.state.ledger.of(incident.incident_id)
        if review is not None and review.proof is Proof.UNDECIDED and not review.by:
            _look(cycle, incident)
        _close_observed(cycle, incident)
    for run in cycle.state.live_runs():
        if run.doubted and _went_beyond(run):
            outcome(cycle, run.doubted, Proof.REFUTED, "a restart helped", last=True)
            cycle.put(replace(run, doubted=0))


def _look(cycle: Cycle, incident: Incident) -> None:
    node = cycle.state.nodes.get(incident.root_node)
    run = cycle.state.runs.get(incident.run_id or 0)
    if node is not None and node.state is NodeState.DOWN:
        outcome(cycle, incident.incident_id, Proof.CONFIRMED, f"Slurm says {node.name} is down")
    elif run is not None and trust.bar_of(incident.rule).halts and _trains_on(run, incident):
        why = f"train step {run.iteration} was completed since"
        outcome(cycle, incident.incident_id, Proof.REFUTED, why)


def _close_observed(cycle: Cycle, incident: Incident) -> None:
    """What is only observed of a device says nothing of a failure that comes much later."""
    asks = incident.state is IncidentState.OPEN and incident.severity is not Severity.NONE
    over = cycle.now > incident.opened_at + cycle.state.policy.progress_seconds
    run = cycle.state.runs.get(incident.run_id or 0)
    if run is None or not (asks and over) or trust.bar_of(incident.rule).halts:
        return
    if incident.rule and held(cycle.state, incident.rule, run):
        cycle.close_incident(incident.incident_id, IncidentState.CLOSED, "only observed")


def _trains_on(run: Run, incident: Incident) -> bool:
    same = run.generation == incident.generation
    return same and run.iteration_since > incident.opened_at + LATE_STEP_SECONDS


def _went_beyond(run: Run) -> bool:
    again = run.state is RunState.RUNNING and run.generation > run.doubted_generation
    return again and run.iteration > run.generation_iteration


def joined(cycle: Cycle, run: Run, incident: Incident, rank: int | None, what: str) -> None:
    """Something happened that the incident foretold, and nothing that was ordered brought about."""
    recent = cycle.now - incident.opened_at <= cycle.state.policy.progress_seconds
    itself = rank is not None and rank == incident.root_rank  # agents tell of no rank they stopped
    if recent and (run.healing is None or itself):
        outcome(cycle, incident.incident_id, Proof.CONFIRMED, what)


def failed_again(cycle: Cycle, run: Run, incident: Incident, rule: str) -> None:
    """The restart that was said to be pointless was."""
    doubted = cycle.state.ledger.of(run.doubted)
    if doubted is not None and doubted.rule == incident.rule == rule:
        for incident_id in (run.doubted, incident.incident_id):
            outcome(cycle, incident_id, Proof.CONFIRMED, "it failed the same after a restart")


def loss_returned(cycle: Cycle, run: Run, loss: Loss) -> None:
    """Past its lease the ranks of a node that is not heard have stopped: then it was lost."""
    quiet = cycle.now - loss.since + cycle.state.policy.silence_seconds
    if quiet < lease_of(run, cycle.state.policy):
        why = f"{loss.node} was heard again {quiet:.1f} s after its last word"
        outcome(cycle, loss.incident_id, Proof.REFUTED, why, last=True)
    else:
        why = f"{loss.node} was not heard for its lease"
        outcome(cycle, loss.incident_id, Proof.CONFIRMED, why)
