"""Rules: how a policy divides nodes when something has changed.

A rule maps a state and what changed to nodes by run; runs that it does not name go on as they are.
HOLD: the run keeps its sound nodes and waits. A rule of one's own is added to RULES.

    replan    the production planner, exact, at each change
    today     the production choice of a run's heal (transition.membership); no growth
    equal, weighted, by_size      all nodes shared out anew at each change
    elastic   each run for itself: goes on with the nodes it has left, grows back to its home size
    wait      a run that lost a node takes a free one, else it waits for the repair
    requeue   a run that lost a node gives up all and queues for its home size, first come first
              served, whoever fits may overtake
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from planner.allocator import Infeasible
from planner.objective import Claim, Pool, Problem
from planner.pools import solve
from simulator.model import SECOND
from simulator.state import POOL, Phase, RunNow, State
from transition.membership import Trouble, choose
from unicrond.model.run import AgentView, HealStep, Run

HOLD = -1
Sizes = Mapping[int, int]


class What(StrEnum):
    BEGIN = "begin"
    LOST = "lost"  # a run's lost nodes were noticed
    BACK = "back"  # a node is free again
    ENDED = "ended"
    STARTED = "started"  # a run arrives


@dataclass(frozen=True, slots=True)
class Change:
    what: What
    run_id: int | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """`begins`: the first division is this rule's own, not the cluster's."""

    react: Callable[[State, Change], Sizes]
    begins: bool = False


def replan(state: State, _: Change) -> Sizes:
    """Nobody is starved: each run has its least size, as long as there are nodes for that."""
    runs = list(state.present())
    floors = [run.spec.least if state.policy.floors else 0 for run in runs]
    held = [_kept(state, run) for run in runs]
    claims = [state.claim(run) for run in runs]
    try:
        return _planned(state, claims, [max(pair) for pair in zip(floors, held, strict=True)])
    except Infeasible:
        return _planned(state, claims, held)


def _kept(state: State, run: RunNow) -> int:
    """What a run that is well does not give away, since Slurm would give it to others."""
    return 0 if state.gives_and_takes or run.standing else run.spec.legal(len(run.nodes))


def _planned(state: State, claims: Sequence[Claim], floors: Sequence[int]) -> Sizes:
    floored = [replace(c, floor=floor) for c, floor in zip(claims, floors, strict=True)]
    plan = solve(problem_of(state, tuple(floored)))
    return {c.run_id: share.size for c, share in zip(claims, plan.shares, strict=True)}


def problem_of(state: State, claims: tuple[Claim, ...]) -> Problem:
    cluster = state.cluster
    if state.policy.foresees:
        pool, others = Pool(POOL, state.available), 1 / max(1.0, state.next_loss_seconds)
    else:
        repairs = len(state.down), cluster.repair_seconds
        pool, others = Pool(POOL, state.available, cluster.failures_per_node_second, *repairs), 0.0
    return Problem(
        claims,
        {POOL: pool},
        other_changes_per_second=others,
        horizon_seconds=max(1.0, (cluster.length - state.now) / SECOND),
        margin=state.policy.margin,
    )


def share(weight: Callable[[RunNow], float]) -> Callable[[State, Change], Sizes]:
    """In proportion to a weight, in legal sizes: whoever has least for its weight gets more."""

    def react(state: State, _: Change) -> Sizes:
        left, sizes = state.available, dict[int, int]()
        for run in sorted(state.present(), key=lambda run: (-weight(run), run.spec.run_id)):
            sizes[run.spec.run_id] = run.spec.least if run.spec.least <= left else 0
            left -= sizes[run.spec.run_id]
        heap = [(n / weight(state.runs[i]), i) for i, n in sizes.items() if n]
        heapq.heapify(heap)
        while heap and left:
            run_id = heapq.heappop(heap)[1]
            run = state.runs[run_id]
            more = _next_legal(run, sizes[run_id]) - sizes[run_id]
            if 0 < more <= left:
                left -= more
                sizes[run_id] += more
                heapq.heappush(heap, (sizes[run_id] / weight(run), run_id))
        return sizes

    return react


def _next_legal(run: RunNow, size: int) -> int:
    flops = run.spec.flops
    return next((n for n in range(size + 1, flops.size) if flops[n] == flops[n]), 0)


def elastic(state: State, change: Change) -> Sizes:
    sizes, free = dict[int, int](), len(state.free)
    if change.what is What.LOST and change.run_id is not None:
        run = state.runs[change.run_id]
        sizes[change.run_id] = run.spec.legal(min(run.home, len(run.nodes) + free)) or HOLD
        free -= max(0, sizes[change.run_id] - len(run.nodes))
    for run in sorted(_settled(state), key=lambda run: (len(run.nodes) - run.home, run.since)):
        wanted = run.spec.legal(min(run.home, len(run.nodes) + free))
        if wanted > len(run.nodes) and run.spec.run_id not in sizes:
            sizes[run.spec.run_id] = wanted
            free -= wanted - len(run.nodes)
    return sizes


def _settled(state: State) -> Iterable[RunNow]:
    """Those whose trouble, if any, has been noticed."""
    return [run for run in state.present() if run.phase is not Phase.DETECTING]


def wait(state: State, change: Change) -> Sizes:
    sizes = {change.run_id: HOLD} if change.what is What.LOST and change.run_id is not None else {}
    free = len(state.free)
    waiting = [r for r in _settled(state) if r.standing or r.spec.run_id in sizes]
    waiting += [state.runs[i] for i in sizes if state.runs[i] not in waiting]
    for run in sorted(waiting, key=lambda run: run.since):
        missing = run.home - len(run.nodes)
        if missing <= free:
            sizes[run.spec.run_id] = run.home
            free -= missing
    return sizes


def requeue(
    state: State, change: Change, smaller: Callable[[RunNow, int], int] = lambda _run, _free: 0
) -> Sizes:
    sizes, free = dict[int, int](), len(state.free)
    queue = [run for run in state.present() if run.phase is Phase.QUEUED]
    if change.what is What.LOST and change.run_id is not None:
        sizes[change.run_id] = 0
        free += len(state.runs[change.run_id].nodes)
        queue.append(state.runs[change.run_id])
    for run in sorted(queue, key=lambda run: run.since):
        size = run.home if run.home <= free else smaller(run, free)
        if size:
            sizes[run.spec.run_id] = size
            free -= size
    return sizes


def today(state: State, change: Change) -> Sizes:
    """As unicrond heals now: within the allocation while enough of it is left, else a requeue, at
    the size that there is room for."""
    shrunk = partial(requeue, smaller=lambda run, free: run.spec.legal(free))
    if change.what is not What.LOST or change.run_id is None:
        return shrunk(state, change)
    choice = choose(*as_production(state.runs[change.run_id], state.now / SECOND), 3)
    if choice.step is HealStep.STOP:
        return {change.run_id: len(choice.nodes)}
    return shrunk(state, change)


def as_production(run: RunNow, now: float) -> tuple[Run, Trouble]:
    """What the production core would know of this run and its trouble."""
    names = {node: f"n{node}" for node in (*run.nodes, *run.lost)}
    lost = tuple(names[node] for node in sorted(run.lost))
    agents = {name: AgentView(name, name, name not in lost, now) for name in names.values()}
    there = tuple(names[node] for node in sorted(names))
    known = Run(
        run_id=run.spec.run_id, name=run.spec.name, user="", uid=0, weight=run.spec.weight,
        min_nodes=run.spec.least, max_nodes=max(run.home, 1), ranks_per_node=1, nodes=there,
        batch_host=there[0], restarts=0, agents=agents,
    )  # fmt: skip
    return known, Trouble(root_node=lost[0] if lost else "", lost=lost, what="node lost")


RULES: dict[str, Rule] = {
    "replan": Rule(replan),
    "today": Rule(today),
    "elastic": Rule(elastic),
    "wait": Rule(wait),
    "requeue": Rule(requeue),
    "equal": Rule(share(lambda run: 1.0), begins=True),
    "weighted": Rule(share(lambda run: run.spec.weight), begins=True),
    "by_size": Rule(share(lambda run: run.spec.parameters), begins=True),
}
