"""From a what-if to the problem it poses; contradictions are refused, with the field's name."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from planner import throughput
from planner.failover import State
from planner.fairness import Wait, with_turns
from planner.kernels import Floats
from planner.objective import Claim, Limits, Pool, Problem, Transition
from planner.placement import Site
from planner.question import AccountPart, PoolPart, Question, RangePart, RunPart, ThroughputPart
from unicrond.errors import BadInput

HOUR_SECONDS, DAY_SECONDS = 3600.0, 86400.0


def problem(question: Question) -> Problem:
    """Raises BadInput that names the field."""
    claims = {claim.run_id: claim for claim in _claims(question, queued=False)}
    _check_held(question, claims.values())
    _check_nodes(question, claims)
    whole = Problem(
        claims=tuple(claims.values()),
        pools={pool.name: _pool(pool) for pool in question.pools},
        other_changes_per_second=question.reliability.other_changes_per_day / DAY_SECONDS,
        horizon_seconds=question.reliability.horizon_seconds,
        margin=question.margin,
        noise=question.noise,
        accounts={
            a.name: _limits(question, a, f"accounts.{i}") for i, a in enumerate(question.accounts)
        },
    )
    if question.patience_seconds is None:
        return whole
    waits = {run.id: Wait(run.waited_seconds, run.turn_left_seconds) for run in question.runs}
    return with_turns(whole, waits, question.patience_seconds)


def failover_states(question: Question) -> list[State]:
    """What the failover table of each pool is made from."""
    whole, queued = problem(question), _claims(question, queued=True)
    return [_failover_state(question, pool, whole, queued) for pool in question.pools]


def _failover_state(
    question: Question, pool: PoolPart, whole: Problem, queued: Iterable[Claim]
) -> State:
    switches: dict[str, Counter[int | None]] = {}
    for node in question.nodes:
        if node.usable and node.pool == pool.name and node.switch:
            switches.setdefault(node.switch, Counter())[node.run] += pool.node_workers
    waiting = tuple(claim for claim in queued if claim.pool == pool.name)
    return State(whole, pool.name, pool.node_workers, switches, waiting, question.keeps_freed)


def _claims(question: Question, queued: bool) -> list[Claim]:
    """In order of run id."""
    claims = [(run, _claim(question, run, f"runs.{i}")) for i, run in enumerate(question.runs)]
    wanted = [claim for run, claim in claims if run.queued == queued]
    return sorted(wanted, key=lambda claim: claim.run_id)


def sites(question: Question, pool: str) -> list[Site]:
    return [
        Site(node.name, node.switch, node.run, node.pinned, node.usable, node.lemon)
        for node in question.nodes
        if node.pool == pool
    ]


def _pool(pool: PoolPart) -> Pool:
    rate = pool.failures_per_1000_node_days / 1000 / DAY_SECONDS / pool.node_workers
    seconds = HOUR_SECONDS * pool.return_hours if pool.return_hours else math.inf
    return Pool(pool.name, pool.workers, rate, pool.away, seconds)


def _limits(question: Question, account: AccountPart, place: str) -> Limits:
    if account.ceiling is not None and account.ceiling < account.floor:
        raise BadInput(f"{place}.ceiling: {account.ceiling} is less than the floor {account.floor}")
    if not any(run.account == account.name for run in question.runs):
        raise BadInput(f"{place}.name: no run has account {account.name!r}")
    return Limits(account.floor, account.ceiling)


def _claim(question: Question, run: RunPart, place: str) -> Claim:
    home = run.pool or next(iter(run.throughput))
    if run.pool is None and len(run.throughput) > 1:
        raise BadInput(
            f"{place}.pool: say where the run is, it may use {len(run.throughput)} pools"
        )
    if home not in run.throughput:
        raise BadInput(f"{place}.pool: {home!r} has no entry in {place}.throughput")
    if run.faulty > run.size:
        raise BadInput(f"{place}.faulty: {run.faulty} of {run.size} workers cannot be faulty")
    if run.ceiling is not None and run.ceiling < run.floor:
        raise BadInput(f"{place}.ceiling: {run.ceiling} is less than the floor {run.floor}")
    transition = run.transition_seconds or question.transition_seconds
    if transition is None:
        raise BadInput(f"{place}.transition_seconds: give it here, or once for all runs at the top")
    return Claim(
        run_id=run.id,
        throughput={name: _legal(question, run, name, place) for name in run.throughput},
        transition=Transition(**transition.model_dump()),
        pool=home,
        size=run.size,
        present_flops=_present_flops(run, home, place),
        faulty=run.faulty,
        broken=run.broken,
        weight=run.weight,
        floor=run.floor,
        ceiling=run.ceiling,
        pinned=_pinned(question, run) if run.can_shrink else run.size,
        account=run.account,
    )


def _pinned(question: Question, run: RunPart) -> int:
    nodes = [node for node in question.nodes if node.run == run.id and node.pinned and node.usable]
    return sum(question.pool(node.pool, "nodes").node_workers for node in nodes)


def _flops(part: ThroughputPart, largest: int) -> Floats:
    if part.model is not None:
        return throughput.Model(**part.model.model_dump()).table(largest)
    return throughput.Curve(part.curve or ()).table(largest)


def _present_flops(run: RunPart, home: str, place: str) -> float:
    flops = float(_flops(run.throughput[home], run.size)[run.size]) if run.size else 0.0
    if np.isnan(flops):
        raise BadInput(
            f"{place}.size: the throughput in pool {home} does not cover {run.size} workers"
        )
    return flops


def _legal(question: Question, run: RunPart, name: str, place: str) -> Floats:
    """T at the run's legal sizes in that pool, NaN elsewhere."""
    part = run.throughput[name]
    pool = question.pool(name, f"{place}.throughput.{name}")
    wanted = np.array(_sizes(part, run.sizes, pool.workers), np.int64)
    table = _flops(part, max(pool.workers, int(wanted.max(initial=0))))
    unknown = wanted[np.isnan(table[wanted])]
    if run.sizes is not None and unknown.size:
        raise BadInput(
            f"{place}.sizes: the throughput in pool {name} does not cover {unknown[0]} workers"
        )
    step = pool.node_workers if pool.whole_nodes else 1
    if isinstance(run.sizes, list) and (wanted % step).any():
        raise BadInput(f"{place}.sizes: pool {name} is given in whole nodes of {step} workers")
    kept = wanted[(wanted % step == 0) & (wanted <= pool.workers)]
    legal = np.full(pool.workers + 1, np.nan)
    legal[kept] = table[kept]
    return legal


def _sizes(
    part: ThroughputPart, sizes: list[int] | RangePart | None, workers: int
) -> Sequence[int]:
    if isinstance(sizes, RangePart):
        return range(sizes.min, sizes.max + 1, sizes.unit)
    if sizes is not None:
        return sizes
    if part.curve is not None:
        return [workers for workers, _ in part.curve]
    return range(1, workers + 1)


def _check_held(question: Question, claims: Iterable[Claim]) -> None:
    held = Counter[str]()
    for claim in claims:
        held[claim.pool] += claim.held
    for i, pool in enumerate(question.pools):
        if held[pool.name] > pool.workers:
            raise BadInput(
                f"pools.{i}.workers: {pool.workers}, but runs hold {held[pool.name]} sound ones"
            )


def _check_nodes(question: Question, claims: Mapping[int, Claim]) -> None:
    """Nodes, where they are listed, must tell the same story as pools and runs."""
    there, held = Counter[str](), Counter[int]()
    for i, node in enumerate(question.nodes):
        size = question.pool(node.pool, f"nodes.{i}.pool").node_workers * node.usable
        there[node.pool] += size
        if node.run is None:
            continue
        if node.run not in claims:
            raise BadInput(f"nodes.{i}.run: there is no run {node.run} that runs")
        if node.pool != claims[node.run].pool:
            raise BadInput(f"nodes.{i}.run: run {node.run} is in pool {claims[node.run].pool}")
        held[node.run] += size
    for i, pool in enumerate(question.pools if question.nodes else ()):
        if there[pool.name] != pool.workers:
            raise BadInput(
                f"pools.{i}.workers: {pool.workers}, but usable nodes have {there[pool.name]}"
            )
    for i, run in enumerate(question.runs if question.nodes else ()):
        if run.id in claims and held[run.id] != claims[run.id].held:
            raise BadInput(
                f"runs.{i}.size: {claims[run.id].held} sound workers, "
                f"but usable nodes with it have {held[run.id]}"
            )
