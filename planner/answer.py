"""The answer to a what-if: plain values, ready for JSON. docs/planner.md describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.advice import Advice, Option, Shares, advise, describe
from planner.allocator import Infeasible
from planner.facts import failover_states, problem, sites
from planner.failover import (
    Event,
    NodeLost,
    NodeReturned,
    RunEnded,
    RunStarted,
    State,
    SwitchLost,
    after,
    prepare,
)
from planner.objective import Change, Claim, Plan, Problem, Share
from planner.placement import place
from planner.question import Question

Answer = dict[str, object]
Nodes = Mapping[int, tuple[str, ...]]


def answer(question: Question) -> Answer:
    """Raises BadInput that names the field, Infeasible among them."""
    whole = problem(question)
    advice = advise(whole, question.time_limit_seconds)
    nodes = _nodes(question, whole, advice.plan.shares)
    return {
        "reason": advice.reason,
        "choice": advice.choice.name,
        "proof": advice.plan.proof.value,
        "gap": advice.plan.gap,
        "waf": advice.choice.waf,
        "gain": advice.choice.gain,
        "running_seconds": whole.running_seconds,
        "runs": [
            _run(claim, share, nodes)
            for claim, share in zip(whole.claims, advice.plan.shares, strict=True)
        ],
        "idle": _idle(whole, advice.plan.shares),
        "alternatives": [_alternative(whole, advice, option) for option in advice.options],
    }


def next_answers(question: Question) -> list[Answer]:
    """The failover tables: what would be done after each single next event, pool by pool."""
    return [
        _entry(state, event, plan, f" of {state.pool}" if len(question.pools) > 1 else "")
        for state in failover_states(question)
        for event, plan in prepare(state, None).plans.items()
    ]


def _entry(state: State, event: Event, plan: Plan | Infeasible, pool: str) -> Answer:
    if isinstance(plan, Infeasible):
        return {
            "event": words(event, pool),
            "obstacle": str(plan),
            "changes": [],
            "sizes": {},
            "gain": None,
        }
    whole = after(state, event)
    return {
        "event": words(event, pool),
        "obstacle": "",
        "changes": describe(whole, plan.shares),
        "sizes": _sizes(whole, plan.shares),
        "gain": plan.gain,
    }


def words(event: Event, pool: str = "") -> str:
    """`pool`: " of NAME" where there are several."""
    match event:
        case NodeLost(None):
            return f"an idle node{pool} is lost"
        case NodeLost(run_id):
            return f"run {run_id} loses a node"
        case SwitchLost(switch):
            return f"switch {switch}{pool} is lost"
        case NodeReturned():
            return f"a node{pool} returns"
        case RunEnded(run_id):
            return f"run {run_id} ends"
        case RunStarted(run_id):
            return f"queued run {run_id} starts"


def _nodes(question: Question, whole: Problem, shares: Shares) -> Nodes:
    """Which nodes each run gets, where the question lists nodes that are given out whole."""
    placed: dict[int, tuple[str, ...]] = {}
    pairs = list(zip(whole.claims, shares, strict=True))
    requeued = {c.run_id for c, s in pairs if c.change(s.size, s.pool) is Change.REQUEUE}
    for pool in question.pools:
        counts = {
            claim.run_id: share.size // pool.node_workers if share.pool == pool.name else 0
            for claim, share in pairs
        }
        there = [
            replace(site, run_id=None, pinned=False) if site.run_id in requeued else site
            for site in sites(question, pool.name)
        ]
        if there and pool.whole_nodes:
            placed |= {run: nodes for run, nodes in place(there, counts).items() if nodes}
    return placed


def _run(claim: Claim, share: Share, nodes: Nodes) -> Answer:
    return {
        "id": claim.run_id,
        "change": claim.change(share.size, share.pool).value,
        "pool": share.pool,
        "size": share.size,
        "size_before": claim.size,
        "waf": claim.rate(share.pool, share.size),
        "nodes": list(nodes.get(claim.run_id, ())),
    }


def _idle(whole: Problem, shares: Shares) -> dict[str, int]:
    used = dict.fromkeys(whole.pools, 0)
    for share in shares:
        used[share.pool] += share.size
    return {name: pool.workers - used[name] for name, pool in whole.pools.items()}


def _alternative(whole: Problem, advice: Advice, option: Option) -> Answer:
    return {
        "name": option.name,
        "chosen": option is advice.choice,
        "obstacle": option.obstacle,
        "waf": option.waf,
        "price": option.price,
        "gain": option.gain,
        "payback_seconds": option.payback_seconds,
        "sizes": _sizes(whole, option.shares),
    }


def _sizes(whole: Problem, shares: Shares) -> dict[str, int]:
    pairs = zip(whole.claims, shares, strict=True)
    return {str(claim.run_id): share.size for claim, share in pairs}
