"""What the planner proposes for the cluster as it is: plain values, ready for JSON, and a sentence.

Runs in trouble are healed by the core whatever is proposed; what today's plan does with the others
is for the core to carry out (unicrond/core/plans.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from planner.advice import duration
from planner.answer import Answer, answer
from planner.cluster import Cluster, Known, questions, without_floors
from planner.question import parse
from unicrond.errors import BadInput
from unicrond.model.decision import Alternative
from unicrond.model.events import PlannedRun


@dataclass(frozen=True, slots=True)
class Proposal:
    """`doc` is stored and shown; the rest is the decision that tells of it."""

    choice: str
    reason: str
    alternatives: tuple[Alternative, ...]
    doc: Answer
    runs: tuple[PlannedRun, ...]  # all, as today's plan has them

    @property
    def moves(self) -> bool:
        return any(run.nodes != run.before for run in self.runs)


def propose(cluster: Cluster, known: Known) -> Proposal | None:
    """None where there is no run to plan for."""
    if not cluster.standings:
        return None
    today, unlimited, notes = questions(cluster, known)
    can, could = _answered(today), _answered(unlimited)
    if str(could.get("obstacle", "")).startswith(("floor", "accounts")):
        notes.append(f"nothing is guaranteed in the unlimited plan: {could['obstacle']}")
        unlimited = without_floors(unlimited)
        could = _answered(unlimited)
    doc: Answer = {
        "today": can,
        "unlimited": could,
        "assumed": notes,
        "questions": {"today": today, "unlimited": unlimited},
    }
    choice, reason = _told(can)
    planned = tuple(_planned(cluster, can))
    return Proposal(choice, reason, (*_alternatives(can), _without(could)), doc, planned)


def _planned(cluster: Cluster, can: Mapping[str, Any]) -> Iterator[PlannedRun]:
    """A run in trouble keeps here what it has: its heal says what it goes on with."""
    found = {run["id"]: run for run in can.get("runs", ())}
    for standing in cluster.standings if found else ():
        run, told = standing.run, found[standing.run.run_id]
        before, placed = standing.size, tuple(told["nodes"])
        nodes = told["size"] if standing.movable else before
        yield PlannedRun(run.run_id, standing.pool, run.generation, before, nodes, placed)


def _answered(question: Mapping[str, Any]) -> Answer:
    try:
        return answer(parse(json.dumps(question)))
    except BadInput as error:
        return {"obstacle": str(error)}


def _told(found: Answer) -> tuple[str, str]:
    if "obstacle" in found:
        return "none", f"no plan: {found['obstacle']}"
    return str(found["choice"]), _in_nodes(found["reason"])


def _alternatives(found: Mapping[str, Any]) -> list[Alternative]:
    options = found.get("alternatives", ())
    stay = next((option["waf"] for option in options if option["name"] == "stay"), 0.0)
    return [Alternative(o["name"], o["chosen"], _price(o, stay)) for o in options]


def _price(option: Mapping[str, Any], stay: float) -> str:
    """In words: what it yields, costs, and when it has paid back."""
    if option["obstacle"]:
        return f"not possible: {_in_nodes(option['obstacle'])}"
    words = [f"WAF {option['waf']:.3g} FLOP/s"]
    if option["name"] != "stay" and stay:
        words[0] += f" ({option['waf'] / stay - 1:+.0%} of staying)"
    if option["price"]:
        words.append(f"price {option['price']:.3g} FLOP")
    if option["payback_seconds"] is not None:
        words.append(f"paid back in {duration(option['payback_seconds'])}")
    return ", ".join(words)


def _without(found: Mapping[str, Any]) -> Alternative:
    """What would be best if everything could be carried out."""
    if "obstacle" in found:
        return Alternative("unlimited", False, f"no plan: {found['obstacle']}")
    words = f"WAF {found['waf']:.3g} FLOP/s: {_in_nodes(found['reason'])}"
    moves = any(run["change"] != "keep" for run in found["runs"])
    return Alternative("unlimited", False, words + " (not all of it can be carried out)" * moves)


def _in_nodes(words: object) -> str:
    """A worker is a node in these questions."""
    return str(words).replace("workers", "nodes")
