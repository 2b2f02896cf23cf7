"""What must hold of any cluster: the formula entry by entry, floors, and calm."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plannerworld import claim, cluster, sizes, table

from planner.failover import (
    Event,
    NodeLost,
    NodeReturned,
    RunEnded,
    RunStarted,
    State,
    SwitchLost,
    prepare,
)
from planner.kernels import ILLEGAL
from planner.objective import Claim, Plan, Pool, Problem, Transition, gains
from planner.pools import solve

WORKERS = 12
SEEDS = st.integers(0, 2**32 - 1)


def any_claim(run_id: int, rng: np.random.Generator, size: int, **more: object) -> Claim:
    flops = rng.uniform(1e14, 1e16, WORKERS + 1)
    flops[rng.random(WORKERS + 1) < 0.3] = np.nan
    flops[size] = rng.uniform(1e14, 1e16)
    faulty = int(rng.integers(0, size + 1)) if rng.random() < 0.3 else 0
    seconds = Transition(*rng.uniform(0, 900, 5).tolist())
    given = {"faulty": faulty, "broken": bool(rng.random() < 0.2), "transition": seconds}
    given |= {"pinned": int(rng.integers(0, size + 1)), **more}
    return claim(run_id, size, flops, weight=rng.uniform(0.5, 2), **given)


def any_cluster(seed: int, **more: object) -> Problem:
    rng = np.random.default_rng(seed)
    present = rng.multinomial(WORKERS, [0.25] * 4)[:3]
    claims = [any_claim(i, rng, int(size), **more) for i, size in enumerate(present)]
    pools = {"gpu": Pool("gpu", WORKERS, failures_per_worker_second=rng.uniform(0, 1e-5))}
    margin = float(rng.uniform(1, 3))
    return cluster(*claims, pools=pools, margin=margin, horizon_seconds=rng.uniform(60, 1e5))


def by_definition(problem: Problem, run: Claim, size: int) -> float | None:
    """G(t, x -> x'), written down anew."""
    if size and np.isnan(run.throughput["gpu"][size]):
        return None
    now = run.weight * run.present_flops if run.size else 0.0
    then = run.weight * run.throughput["gpu"][size] if size else 0.0
    disturbed = size != run.size or run.faulty > 0 or run.broken
    seconds = run.seconds(run.change(size)) if disturbed else 0.0
    return float(then * problem.running_seconds - problem.margin * now * seconds)


@given(SEEDS)
def test_the_table_is_the_formula_entry_by_entry(seed: int) -> None:
    problem = any_cluster(seed)
    found = gains(problem, problem.claims, "gpu")
    for row, run in zip(found.table, problem.claims, strict=True):
        for size, entry in enumerate(row):
            expected = by_definition(problem, run, size)
            if expected is None:
                assert entry == ILLEGAL
            else:
                assert abs(entry * found.unit - expected) <= found.unit * 0.51 + 1e-12 * abs(
                    expected
                )


@given(SEEDS, st.integers(0, 4), st.integers(4, WORKERS))
def test_floors_ceilings_and_the_pool_hold(seed: int, floor: int, ceiling: int) -> None:
    problem = any_cluster(seed)
    full = replace(problem, claims=tuple(_bounded(run, floor, ceiling) for run in problem.claims))
    plan = solve(full)
    assert all(floor <= size <= ceiling for size in sizes(plan))
    assert sum(sizes(plan)) <= WORKERS


def _bounded(run: Claim, floor: int, ceiling: int) -> Claim:
    return replace(run, throughput={"gpu": table(WORKERS)}, floor=floor, ceiling=ceiling)


@given(SEEDS)
def test_a_move_is_made_only_if_it_pays_back_within_the_time_it_lasts(seed: int) -> None:
    problem = any_cluster(seed, faulty=0, broken=False)
    plan = solve(problem)
    pairs = [(r, s.size) for r, s in zip(problem.claims, plan.shares, strict=True)]
    more = sum(run.rate("gpu", size) - run.present_rate for run, size in pairs)
    price = sum(run.price("gpu", size) for run, size in pairs)
    exact = 1 - 1e-9
    assert more * problem.running_seconds >= problem.margin * price * exact
    assert more >= 0


@given(SEEDS)
def test_a_plan_once_carried_out_is_not_moved_away_from(seed: int) -> None:
    same = Transition(*[300.0] * 5)
    problem = any_cluster(seed, transition=same)
    plan = solve(problem)
    claims = tuple(
        replace(
            run, size=s.size, present_flops=run.throughput["gpu"][s.size], faulty=0, broken=False
        )
        for run, s in zip(problem.claims, plan.shares, strict=True)
    )
    assert sizes(solve(replace(problem, claims=claims))) == sizes(plan)


@given(SEEDS)
def test_what_was_foreseen_is_worth_what_trying_all_divisions_at_the_event_finds(seed: int) -> None:
    problem = any_cluster(seed, faulty=0, broken=False)
    gpu = replace(problem.pools["gpu"], away=2, return_seconds=5e4)
    problem = replace(problem, pools={"gpu": gpu})
    rng = np.random.default_rng(seed)
    queued = any_claim(9, rng, 1, faulty=0, broken=False)
    first = min(problem.claims, key=lambda run: run.run_id)
    on_switch = {first.run_id: min(2, first.size), None: 0}
    state = State(problem, "gpu", 1, {"s": on_switch}, (queued,), keeps_freed=bool(seed % 2))
    for event, plan in prepare(state, "now").plans.items():
        assert isinstance(plan, Plan)
        assert plan.gain == pytest.approx(_best_of_all(_left(state, event)), rel=1e-9), event


def _left(state: State, event: Event) -> Problem:
    """What is there after it, told anew."""
    gpu, runs = state.problem.pools["gpu"], {run.run_id: run for run in state.problem.claims}
    match event:
        case NodeLost(run_id):
            gpu = replace(gpu, workers=gpu.workers - 1, away=gpu.away + 1)
            if run_id is not None:
                runs[run_id] = replace(runs[run_id], faulty=1)
        case SwitchLost(switch):
            for run_id, lost in state.switches[switch].items():
                gpu = replace(gpu, workers=gpu.workers - lost, away=gpu.away + lost)
                if run_id is not None:
                    runs[run_id] = replace(runs[run_id], faulty=lost)
        case NodeReturned():
            gpu = replace(gpu, workers=gpu.workers + 1, away=gpu.away - 1)
        case RunEnded(run_id):
            gone = 0 if state.keeps_freed else runs[run_id].size
            gpu, _ = replace(gpu, workers=gpu.workers - gone), runs.pop(run_id)
        case RunStarted(run_id):
            runs[run_id] = state.queued[0]
    return replace(state.problem, claims=tuple(runs.values()), pools={"gpu": gpu})


def _best_of_all(problem: Problem) -> float:
    most = problem.pools["gpu"].workers
    best = np.full(most + 1, -np.inf)  # by workers used
    best[0] = 0.0
    for run in problem.claims:
        largest = min(most, run.throughput["gpu"].size - 1)
        worth = [by_definition(problem, run, size) for size in range(largest + 1)]
        best = np.array(
            [
                max(best[used - k] + w for k, w in enumerate(worth[: used + 1]) if w is not None)
                for used in range(most + 1)
            ]
        )
    return float(best.max())
