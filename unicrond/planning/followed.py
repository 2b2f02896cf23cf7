"""What became of plans: of each heal the price that its plan predicted, and the measured one. Pure.

    transition   from when the fault was noticed until all ranks ran again
    kept         FLOP/s after the heal over those before it, from iterations at both sizes
    price        weighted FLOP: what the run yielded, for as long as the transition took

It is told once: when iterations were measured after the heal, or WATCH_SECONDS after it without.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from db.knowledge import Observation, Planned
from planner import iteration
from planner.advice import duration
from unicrond.model.decision import Decision
from unicrond.model.incident import Incident
from unicrond.model.run import Run

WATCH_SECONDS = 1800.0
LATEST_WINDOWS = 3
MOST_KEPT = 50  # of the newest

What = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Followed:
    """`planned`, `done`: kinds of change. None: not measured, or nothing to compare with."""

    incident_id: int
    run_id: int
    at: float  # when the heal was done
    planned: str
    done: str
    predicted_seconds: float
    measured_seconds: float
    predicted_price: float
    measured_price: float
    predicted_kept: float | None
    measured_kept: float | None

    @property
    def text(self) -> str:
        return (
            f"the plan said {self.planned} in {duration(self.predicted_seconds)}, "
            f"price {self.predicted_price:.3g} FLOP, {_kept(self.predicted_kept)}; measured: "
            f"{self.done} in {duration(self.measured_seconds)}, "
            f"price {self.measured_price:.3g} FLOP, {_kept(self.measured_kept)}"
        )


def _kept(share: float | None) -> str:
    return "FLOP/s after it not known" if share is None else f"{share:.0%} of the FLOP/s kept"


def follow(
    incident: Incident,
    decision: Decision,
    plan: Planned,
    run: Run,
    seen: Sequence[Observation],
    now: float,
) -> Followed | None:
    """None while it is too early, or where the plan says nothing of that run."""
    found = _of_run(json.loads(plan.doc), run.run_id)
    if found is None:
        return None
    planned, question = found
    kept = _measured_kept(planned["size_before"], incident.closed_at, run, seen)
    if kept is None and now < incident.closed_at + WATCH_SECONDS:
        return None
    curve = dict(map(tuple, question["throughput"][planned["pool"]]["curve"]))
    before = curve.get(planned["size_before"], 0.0)
    seconds = question["transition_seconds"].get(planned["change"], 0.0)
    measured = incident.closed_at - incident.first_signal_at
    rate = question["weight"] * before
    share = curve.get(planned["size"], 0.0) / before if before and planned["size"] else None
    return Followed(
        incident.incident_id, run.run_id, incident.closed_at, planned["change"], decision.choice,
        seconds, measured, rate * seconds, rate * measured, share, kept,
    )  # fmt: skip


def _of_run(doc: What, run_id: int) -> tuple[What, What] | None:
    """What was planned for it, and what was known of it then."""
    planned = [run for run in doc["today"].get("runs", ()) if run["id"] == run_id]
    asked = [run for run in doc["questions"]["today"]["runs"] if run["id"] == run_id]
    return (planned[0], asked[0]) if planned and asked and planned[0]["size_before"] else None


def _measured_kept(nodes: int, since: float, run: Run, seen: Sequence[Observation]) -> float | None:
    """From the size with the newest window since then, and what was seen at so many nodes."""
    before = [o for o in seen if o.nodes == nodes]
    after = max((o for o in seen if o.at > since), key=lambda o: o.at, default=None)
    if after is None or not before:
        return None
    here, there = after.seconds[-LATEST_WINDOWS:], before[-1].seconds
    rates = [
        iteration.work(run.workload, workers) / statistics.median(seconds)
        for workers, seconds in ((after.workers, here), (before[-1].workers, there))
    ]
    return rates[0] / rates[1] if rates[1] else None
