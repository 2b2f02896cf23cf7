"""The failover tables of the cluster as it was last asked about, and whether they foresaw this.

An event is known by what it leaves of its pool: workers and nodes away; size, lost workers and
floor of each run. A state that no single event leaves, and in one pool only, was not foreseen.
Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from planner.allocator import Infeasible
from planner.answer import words
from planner.facts import failover_states, problem
from planner.failover import Event, Failover, after, events, prepare
from planner.objective import Problem
from planner.question import Question

MOST_CELLS = 500_000_000  # events x runs x workers: some four seconds


@dataclass(frozen=True, slots=True)
class PoolReady:
    """`now`: the pool as it is; `left`: the event behind each state that one leaves."""

    pool: str
    now: Hashable
    table: Failover
    left: Mapping[Hashable, Event]


@dataclass(frozen=True, slots=True)
class Ready:
    """`at`: Unix seconds."""

    at: float
    pools: tuple[PoolReady, ...]

    @property
    def plans(self) -> int:
        return sum(len(pool.left) for pool in self.pools)


def make_ready(question: Question, at: float) -> Ready | None:
    """None where there are no tables: too large a cluster."""
    states = failover_states(question)
    cells = 0
    for state in states:
        runs = sum(claim.pool == state.pool for claim in state.problem.claims)
        workers = state.problem.pools[state.pool].workers
        cells += sum(1 for _ in events(state)) * runs * workers
    if cells > MOST_CELLS:
        return None
    pools = [
        PoolReady(
            state.pool,
            _left(state.problem, state.pool),
            prepare(state, at),
            {_left(after(state, event), state.pool): event for event in events(state)},
        )
        for state in states
    ]
    return Ready(at, tuple(pools))


def foreseen(ready: Ready | None, question: Question, sizes: Mapping[int, int], now: float) -> str:
    """Whether the division that was found now, `sizes` by run, was ready before; in words."""
    if ready is None:
        return "no plans were ready"
    whole = problem(question)
    changed = [pool for pool in ready.pools if _left(whole, pool.pool) != pool.now]
    pool = changed[0] if len(changed) == 1 else None
    event = pool.left.get(_left(whole, pool.pool)) if pool else None
    plan = pool.table.lookup(ready.at, event) if pool and event is not None else None
    if pool is None or event is None or plan is None:
        return f"by none of the {ready.plans} plans that were ready"
    mine = sorted(claim.run_id for claim in whole.claims if claim.pool == pool.pool)
    shares = () if isinstance(plan, Infeasible) else plan.shares
    known = {run_id: share.size for run_id, share in zip(mine, shares, strict=False)}
    same = known == {run_id: sizes.get(run_id) for run_id in mine}
    how = "the same division" if same else "another division, for rates have changed since"
    where = f" of {pool.pool}" if len(ready.pools) > 1 else ""
    return f"{words(event, where)}: a plan was ready for {now - ready.at:.0f} s, {how}"


def _left(whole: Problem, pool: str) -> Hashable:
    there = whole.pools.get(pool)
    if there is None:
        return None
    claims = tuple((c.run_id, c.size, c.faulty, c.floor) for c in whole.claims if c.pool == pool)
    return there.workers, there.away, claims
