"""The best division after every single next event, worked out before it happens.

    event                        what changes in the problem
    NodeLost(run)                the run has a node's workers faulty, the pool has as many fewer
    NodeLost(None)               an idle node: the pool has as many fewer
    SwitchLost(switch)           every run and the pool lose what they have there
    NodeReturned()               the pool has a node's workers more, and one node less is away
    RunEnded(run)                its claim is gone; so are its workers, unless `keeps_freed`
    RunStarted(run)              a queued run holds the workers that it asked for

One pool, each run staying in it; where there are several, each has its table. Runs of other pools
keep what they have: they enter through D_running and through what limits by account leave. An event
that leaves no legal division has the reason in place of a plan. The table belongs to one state of
the cluster, which its maker names (`stamp`), and answers for no other.

Each entry is solved by itself: docs/adr/0013-no-prefix-and-suffix-tables.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from planner.allocator import Infeasible
from planner.objective import Claim, Plan, Problem
from planner.pools import solve


@dataclass(frozen=True, slots=True)
class NodeLost:
    run_id: int | None


@dataclass(frozen=True, slots=True)
class SwitchLost:
    switch: str


@dataclass(frozen=True, slots=True)
class NodeReturned:
    pass


@dataclass(frozen=True, slots=True)
class RunEnded:
    run_id: int


@dataclass(frozen=True, slots=True)
class RunStarted:
    run_id: int


Event = NodeLost | SwitchLost | NodeReturned | RunEnded | RunStarted


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """One pool of a problem, and what events can do to it."""

    problem: Problem
    pool: str
    node_workers: int  # workers of a node
    switches: Mapping[str, Mapping[int | None, int]] = field(default_factory=dict)
    queued: tuple[Claim, ...] = ()  # each with the size that it asked for
    keeps_freed: bool = False  # else the nodes of a run that ends go to Slurm's queue


@dataclass(frozen=True, slots=True)
class Failover:
    """Plans by event, for the state that `stamp` names."""

    stamp: Hashable
    plans: Mapping[Event, Plan | Infeasible]

    def lookup(self, stamp: Hashable, event: Event) -> Plan | Infeasible | None:
        """None when the table is stale, or such an event was not foreseen."""
        return self.plans.get(event) if stamp == self.stamp else None


def prepare(state: State, stamp: Hashable) -> Failover:
    """The whole table."""
    return Failover(stamp, {event: _solved(state, event) for event in events(state)})


def events(state: State) -> Iterator[Event]:
    """All that the table foresees."""
    running = [claim for claim in state.problem.claims if claim.pool == state.pool]
    yield from (NodeLost(claim.run_id) for claim in running if claim.held)
    idle = state.problem.pools[state.pool].workers - sum(claim.held for claim in running)
    if idle >= state.node_workers:
        yield NodeLost(None)
    yield NodeReturned()
    yield from (RunEnded(claim.run_id) for claim in running)
    yield from (RunStarted(claim.run_id) for claim in state.queued)
    yield from (SwitchLost(switch) for switch in state.switches)


def after(state: State, event: Event) -> Problem:
    """The problem that the event leaves."""
    claims = {claim.run_id: claim for claim in state.problem.claims if claim.pool == state.pool}
    change = away = 0
    match event:
        case NodeLost(run_id):
            change, away = -_lose(claims, {run_id: state.node_workers}), 1
        case SwitchLost(switch):
            change = -_lose(claims, state.switches[switch])
            away = -change // state.node_workers
        case NodeReturned():
            change, away = state.node_workers, -1
        case RunEnded(run_id):
            gone = claims.pop(run_id)
            change = 0 if state.keeps_freed else -gone.held
        case RunStarted(run_id):
            claims[run_id] = next(claim for claim in state.queued if claim.run_id == run_id)
    return _with(state, claims, change, away)


def _lose(claims: dict[int, Claim], lost: Mapping[int | None, int]) -> int:
    """Marks those workers faulty; returns how many there were, idle ones (None) included."""
    workers = 0
    for run_id, count in lost.items():
        if run_id in claims:
            claim = claims[run_id]
            count = min(count, claim.held)
            claims[run_id] = replace(claim, faulty=claim.faulty + count)
        workers += count
    return workers


def _with(state: State, claims: Mapping[int, Claim], change: int, away: int) -> Problem:
    pool = state.problem.pools[state.pool]
    there = replace(pool, workers=max(0, pool.workers + change), away=max(0, pool.away + away))
    elsewhere = Counter[str]()
    for claim in state.problem.claims:
        if claim.pool != state.pool:
            elsewhere[claim.account] += claim.held
    accounts = state.problem.accounts.items()
    return replace(
        state.problem,
        claims=tuple(
            replace(claim, throughput={state.pool: claim.throughput[state.pool]})
            for _, claim in sorted(claims.items())
        ),
        pools={**state.problem.pools, state.pool: there},
        accounts={name: limits.beside(elsewhere[name]) for name, limits in accounts},
    )


def _solved(state: State, event: Event) -> Plan | Infeasible:
    try:
        return solve(after(state, event))
    except Infeasible as nothing:
        return nothing
