"""The failover table of the whole cluster as it was last asked about, and whether it foresaw this.

An event is known by what it leaves: workers and nodes away of the pool, size, lost workers and
floor of each run. A state that no single event leaves was not foreseen. Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from planner.allocator import Infeasible
from planner.answer import words
from planner.facts import failover_state, problem
from planner.failover import Event, Failover, after, events, prepare
from planner.objective import Problem
from planner.question import Question

MOST_CELLS = 500_000_000  # events x runs x workers: some four seconds


@dataclass(frozen=True, slots=True)
class Ready:
    """`left`: the event behind each state that one leaves. `at`: Unix seconds."""

    at: float
    table: Failover
    left: Mapping[Hashable, Event]


def make_ready(question: Question, at: float) -> Ready | None:
    """None where there is no table: several pools, limits by account, or too large a cluster."""
    if len(question.pools) > 1 or question.accounts:
        return None
    state = failover_state(question)
    foreseen = list(events(state))
    runs = len(state.problem.claims)
    if len(foreseen) * runs * state.problem.pools[state.pool].workers > MOST_CELLS:
        return None
    left = {_left(after(state, event)): event for event in foreseen}
    return Ready(at, prepare(state, at), left)


def foreseen(ready: Ready | None, question: Question, sizes: Mapping[int, int], now: float) -> str:
    """Whether the division that was found now, `sizes` by run, was ready before; in words."""
    if ready is None:
        return "no plans were ready"
    event = ready.left.get(_left(problem(question)))
    plan = ready.table.lookup(ready.at, event) if event is not None else None
    if event is None or plan is None:
        return f"by none of the {len(ready.left)} plans that were ready"
    runs = sorted(sizes)
    known = {} if isinstance(plan, Infeasible) else dict(zip(runs, plan.shares, strict=True))
    same = {run_id: share.size for run_id, share in known.items()} == sizes
    how = "the same division" if same else "another division, for rates have changed since"
    return f"{words(event)}: a plan was ready for {now - ready.at:.0f} s, {how}"


def _left(whole: Problem) -> Hashable:
    pools = tuple((p.name, p.workers, p.away) for p in whole.pools.values())
    return pools, tuple((c.run_id, c.size, c.faulty, c.floor) for c in whole.claims)
