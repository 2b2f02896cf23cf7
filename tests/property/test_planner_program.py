"""Several pools and limits by account: never worse than the gap that is claimed."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plannerworld import claim, cluster, table

from planner.allocator import Infeasible
from planner.choice import Choice
from planner.objective import Claim, Limits, Plan, Pool, Problem, Proof
from planner.pools import solve
from planner.program import GAP, solve_program

SEEDS = st.integers(0, 2**32 - 1)
PROGRAMS = settings(max_examples=max(20, settings().max_examples // 5))  # each takes 30 ms


def any_problem(seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    pools = {name: Pool(name, int(rng.integers(1, 6))) for name in ("new", "old")}
    claims = [_any_claim(i, rng, pools) for i in range(int(rng.integers(1, 5)))]
    accounts = {"a": Limits(int(rng.integers(0, 2)), int(rng.integers(2, 8)))}
    return cluster(*claims, pools=pools, accounts=accounts if rng.random() < 0.5 else {})


def _any_claim(run_id: int, rng: np.random.Generator, pools: dict[str, Pool]) -> Claim:
    allowed = list(pools) if rng.random() < 0.7 else ["old"]
    throughput = {name: rng.uniform(1e14, 1e16, pools[name].workers + 1) for name in allowed}
    run = claim(
        run_id, throughput=throughput, pool=str(rng.choice(allowed)),
        account=str(rng.choice(["a", "b"])), weight=rng.uniform(0.5, 2),
        floor=int(rng.random() < 0.2),
    )  # fmt: skip
    present = rng.uniform(1e14, 1e16)
    return replace(run, size=int(rng.integers(0, 3)), present_flops=present)


def by_trying_all(problem: Problem) -> float:
    seconds, margin = problem.running_seconds, problem.margin
    choices = [
        [
            (pool, k, run.rate(pool, k) * seconds - margin * run.price(pool, k), run.account)
            for pool in run.throughput
            for k in range(problem.pools[pool].workers + 1)
            if run.allows(pool, k) and (k or pool == run.pool)
        ]
        for run in problem.claims
    ]
    fitting = (
        sum(c[2] for c in chosen) for chosen in itertools.product(*choices) if fits(problem, chosen)
    )
    return max(fitting, default=-np.inf)


def fits(problem: Problem, chosen: tuple[tuple[str, int, float, str], ...]) -> bool:
    for name, pool in problem.pools.items():
        if sum(c[1] for c in chosen if c[0] == name) > pool.workers:
            return False
    for name, limits in problem.accounts.items():
        counted = [c[1] for c in chosen if c[3] == name]
        used = sum(counted)
        if not counted:
            continue
        if used < limits.floor or (limits.ceiling is not None and used > limits.ceiling):
            return False
    return True


def check(problem: Problem, plan: Plan, best: float) -> None:
    chosen = tuple(
        (share.pool, share.size, 0.0, run.account)
        for run, share in zip(problem.claims, plan.shares, strict=True)
    )
    assert fits(problem, chosen)
    assert all(
        s.size or s.pool == run.pool for run, s in zip(problem.claims, plan.shares, strict=True)
    )
    slack = 1e-6 * abs(best) + 1
    assert plan.gain <= best + slack
    assert best <= plan.gain + plan.gap * abs(plan.gain) + slack


@PROGRAMS
@given(SEEDS)
def test_no_division_is_better_than_the_gap_says(seed: int) -> None:
    problem = any_problem(seed)
    best = by_trying_all(problem)
    if best == -np.inf:
        with pytest.raises(Infeasible, match="floor"):
            solve_program(problem, 10.0)
        return
    plan = solve_program(problem, 10.0)
    check(problem, plan, best)
    assert plan.proof is Proof.BOUND
    assert plan.gap <= GAP


@PROGRAMS
@given(SEEDS)
def test_without_time_the_plan_is_labelled_greedy_and_its_gap_still_holds(seed: int) -> None:
    problem = any_problem(seed)
    try:
        plan = solve_program(problem, 0.0)
    except Infeasible:
        return
    check(problem, plan, by_trying_all(problem))


def larger(runs: int) -> Problem:
    pools = {name: Pool(name, 40) for name in ("new", "old")}
    claims = [
        claim(i, size=8, flops=table(40, unit=4), weight=1 + i / 10, pool="new" if i % 2 else "old",
              throughput={"new": 1.5 * table(40, unit=4), "old": table(40, unit=4, power=0.9)})
        for i in range(runs)
    ]  # fmt: skip
    return cluster(*claims, pools=pools)


def test_time_decides_whether_the_plan_is_proven() -> None:
    assert solve_program(larger(9), 0.0).proof is Proof.GREEDY
    proven = solve_program(larger(9), 10.0)
    assert proven.proof is Proof.BOUND
    assert proven.gain >= solve_program(larger(9), 0.0).gain


def many_pools(seed: int) -> Problem:
    """Four pools, two and two as fast; some runs would fill one alone."""
    rng = np.random.default_rng(seed)
    names, size = [f"p{i}" for i in range(4)], np.arange(33)
    claims = []
    for i in range(20):
        curve = 1e15 * size ** rng.uniform(0.6, 0.97)
        there = {name: (1 + j % 2 / 4) * curve for j, name in enumerate(names)}
        home, weight = names[i % 4], float(rng.choice([0.5, 1.1, 2.0]))
        claims.append(claim(i, 2, curve, weight=weight, pool=home, throughput=there))
    return cluster(*claims, pools={name: Pool(name, 32) for name in names})


@pytest.mark.parametrize("seed", range(3))
def test_single_workers_of_many_pools_are_divided_within_the_gap(seed: int) -> None:
    problem = many_pools(seed)
    plan = solve(problem)
    assert plan.proof is Proof.BOUND
    assert plan.gap <= GAP
    assert plan == solve(problem), "no clock decides"


def test_in_a_pool_that_it_may_not_use_a_run_has_nothing() -> None:
    """A shake may put it there."""
    run = claim(1, pool="old", throughput={"old": table(8)})
    problem = cluster(run, pools={name: Pool(name, 8) for name in ("new", "old")})
    columns = np.array([0, 0]), np.array([1, 1]), np.array([0, 8]), np.array([0.0, 1e20])
    pools, sizes = Choice(problem, *columns).divided(np.array([0]))
    assert (pools.tolist(), sizes.tolist()) == ([1], [0])


def test_one_pool_without_limits_is_exact_and_the_program_agrees() -> None:
    claims = [claim(i, size=4, weight=1 + i / 7) for i in range(5)]
    problem = cluster(*claims, workers=23)
    exact = solve(problem)
    assert exact.proof is Proof.EXACT
    assert solve_program(problem, 10.0).gain == pytest.approx(exact.gain, rel=GAP)


def test_separate_pools_are_each_solved_exactly() -> None:
    pools = {name: Pool(name, 8) for name in ("new", "old")}
    claims = [
        claim(i, pool=name, throughput={name: table()}) for i, name in enumerate(["new", "old"])
    ]
    plan = solve(cluster(*claims, pools=pools))
    assert plan.proof is Proof.EXACT
    assert [(share.pool, share.size) for share in plan.shares] == [("new", 8), ("old", 8)]


def test_an_account_gets_its_floor_and_no_more_than_its_ceiling() -> None:
    claims = [claim(1, weight=9.0, account="rich"), claim(2, weight=0.1, account="poor")]
    free = solve(cluster(*claims))
    fair = solve(cluster(*claims, accounts={"rich": Limits(ceiling=9), "poor": Limits(floor=5)}))
    floor = solve(cluster(*claims, accounts={"poor": Limits(floor=12)}))
    assert [share.size for share in free.shares][1] < 5
    assert [share.size for share in fair.shares] == [9, 7]
    assert [share.size for share in floor.shares] == [4, 12]
    with pytest.raises(Infeasible, match="floor"):
        solve(cluster(*claims, accounts={"poor": Limits(floor=17)}))


@pytest.mark.parametrize("seed", [15])
def test_where_the_program_stops_early_its_gap_covers_what_it_missed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    curves = 1e15 * np.arange(61) ** rng.uniform(0.5, 1, (30, 1)) + rng.uniform(0, 3e15, (30, 61))
    claims = [
        claim(i, size=4, flops=curve, weight=rng.uniform(0.5, 2)) for i, curve in enumerate(curves)
    ]
    problem = cluster(*claims, workers=170)
    exact, found = solve(problem).gain, solve_program(problem, 10.0)
    assert found.gain <= exact * (1 + 1e-9)
    assert exact <= found.gain * (1 + found.gap + 1e-9)
