"""What unicrond would have done, beside what people did: whether it may be switched on.

Each decision that was not carried out counts for its action. Whether it would have been right is
what became of the incident (detectors/trust.py): confirmed, refuted, or not known yet. An action
may be switched on once the lower bound of its record, Wilson's at 95 %, reaches NEEDED.

    predicted seconds   how long such a heal takes here, as the planner learned it
    actual seconds      from the decision until the run trained again or ended, by people's hands
    saving              their difference, times the GPUs that stood still; never counted below zero
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from fastapi import APIRouter

from db.held import phases_of
from db.knowledge import CLUSTER, RELIABILITY
from db.observed import Observed, observed
from db.queries import Queries
from db.spells import Phase
from detectors.trust import Ledger, bar_of, lower_bound
from unicrond.api.reports import ActionTrustOut, RuleTrustOut, TrustOut
from unicrond.api.view import Viewer
from unicrond.model.incident import Proof
from unicrond.model.run import RunState

NEEDED = 0.6
MOST_DECISIONS = 2_000


@dataclass(slots=True)
class Record:
    """Of one kind of action."""

    proofs: list[Proof] = field(default_factory=list)
    people: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    actual: list[float] = field(default_factory=list)
    gpus: list[int] = field(default_factory=list)

    def count(self, proof: Proof) -> int:
        return self.proofs.count(proof)

    def saving(self, predicted: float | None) -> float | None:
        """GPU-seconds; None where it is not known how long a heal takes."""
        if predicted is None:
            return None
        pairs = zip(self.actual, self.gpus, strict=True)
        return sum(max(0.0, took - predicted) * gpus for took, gpus in pairs)


def followed(one: Observed, phases: list[Phase]) -> tuple[str, float | None]:
    """What people did, and after how many seconds; None while nothing is known of it."""
    at, incident = one.decision.at, one.incident
    for phase in phases:
        if phase.began > at and RunState(phase.state).ended:
            return "ended", phase.began - at
        if phase.began > at and phase.generation > one.decision.generation:
            return "restarted", phase.began - at
        if phase.began > at and RunState(phase.state) is RunState.REQUEUED:
            return "requeued", phase.began - at
    if incident.closed_at > at:
        return "went on", incident.closed_at - at
    return "open", None


def records(
    told: list[Observed], phases: dict[int, list[Phase]], ledger: Ledger
) -> dict[str, Record]:
    found: defaultdict[str, Record] = defaultdict(Record)
    for one in told:
        record = found[one.decision.choice]
        review = ledger.of(one.incident.incident_id)
        record.proofs.append(review.proof if review else Proof.UNDECIDED)
        did, took = followed(one, phases.get(one.decision.run_id or -1, []))
        record.people[did] += 1
        if took is not None and did in ("restarted", "requeued", "ended"):
            record.actual.append(took)
            record.gpus.append(one.gpus)
    return found


def routes(queries: Queries, viewer: Viewer) -> APIRouter:
    router = APIRouter(tags=["stories"])

    @router.get("/trust")
    def trust() -> TrustOut:
        """By kind of action and by rule, whether it may be switched on."""
        ledger = Ledger(queries.reviews())
        told = observed(queries, MOST_DECISIONS)
        runs = sorted({one.decision.run_id for one in told if one.decision.run_id is not None})
        phases = phases_of(queries, runs, float(1 << 53))
        seconds = _predicted(queries)
        heartbeat = viewer.current().heartbeat
        found = records(told, phases, ledger)
        return TrustOut(
            mode=heartbeat.mode if heartbeat else None,
            needed=NEEDED,
            actions=[_action(name, found[name], seconds.get(name)) for name in sorted(found)],
            rules=[_rule(rule, ledger) for rule in sorted(ledger.rules())],
        )

    return router


def _predicted(queries: Queries) -> dict[str, float]:
    learned: Any = queries.learned(RELIABILITY, CLUSTER) or {}
    return {told["kind"]: float(told["seconds"]) for told in learned.get("transitions", [])}


def _action(name: str, record: Record, predicted: float | None) -> ActionTrustOut:
    confirmed, refuted = record.count(Proof.CONFIRMED), record.count(Proof.REFUTED)
    bound = lower_bound(confirmed, refuted)
    return ActionTrustOut(
        action=name,
        observed=len(record.proofs),
        confirmed=confirmed,
        refuted=refuted,
        undecided=record.count(Proof.UNDECIDED),
        bound=bound,
        may_act=bound >= NEEDED,
        people=dict(record.people),
        predicted_seconds=predicted,
        actual_seconds=median(record.actual) if record.actual else None,
        saving_gpu_seconds=record.saving(predicted),
    )


def _rule(rule: str, ledger: Ledger) -> RuleTrustOut:
    record, bar = ledger.whole(rule), bar_of(rule)
    return RuleTrustOut(
        rule=rule,
        confirmed=record.confirmed,
        refuted=record.refuted,
        undecided=record.undecided,
        bound=lower_bound(record.confirmed + bar.credit, record.refuted),
        needs=bar.needs,
        may_act=ledger.seen_by(rule, "").clears(bar),
    )
