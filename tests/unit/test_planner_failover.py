"""The table of the best division after every single next event."""

import timeit
from dataclasses import replace

import numpy as np
import pytest
from plannerworld import claim, cluster, sizes, table

from planner.allocator import Infeasible
from planner.failover import (
    Event,
    NodeLost,
    NodeReturned,
    RunEnded,
    RunStarted,
    State,
    SwitchLost,
    after,
    events,
    prepare,
)
from planner.objective import Limits, Plan, Pool
from planner.pools import solve

EVEN = table(unit=2)
STATE = State(
    cluster(claim(1, size=6, flops=EVEN, weight=1.05), claim(2, size=6, flops=EVEN), workers=14),
    "gpu",
    node_workers=2,
    switches={"s1": {1: 4, None: 2}, "s2": {1: 2, 2: 6}},
    queued=(claim(3, size=2, flops=EVEN),),
)


def plan_after(state: State, event) -> Plan:  # type: ignore[no-untyped-def]
    plan = prepare(state, "now").lookup("now", event)
    assert isinstance(plan, Plan)
    return plan


def test_every_single_next_event_is_foreseen() -> None:
    assert set(events(STATE)) == {
        NodeLost(1), NodeLost(2), NodeLost(None), NodeReturned(), RunEnded(1), RunEnded(2),
        RunStarted(3), SwitchLost("s1"), SwitchLost("s2"),
    }  # fmt: skip


def test_an_idle_node_can_only_be_lost_where_there_is_one() -> None:
    full = replace(STATE, problem=replace(STATE.problem, pools={"gpu": Pool("gpu", 12)}))
    assert NodeLost(None) not in set(events(full))


def test_what_was_prepared_is_what_solving_at_the_event_finds() -> None:
    prepared = prepare(STATE, "now")
    for event, plan in prepared.plans.items():
        assert plan == solve(after(STATE, event)), event


def test_a_lost_node_is_replaced_by_an_idle_one_or_else_its_run_shrinks() -> None:
    assert sizes(plan_after(STATE, NodeLost(1))) == [6, 6]
    full = replace(STATE, problem=replace(STATE.problem, pools={"gpu": Pool("gpu", 12)}))
    assert sizes(plan_after(full, NodeLost(2))) == [6, 4], "moving run 1 too would not pay back"


def test_each_event_leaves_the_workers_that_it_says() -> None:
    def left(event, **more):  # type: ignore[no-untyped-def]
        problem = after(replace(STATE, **more), event)
        return problem.pools["gpu"].workers, {c.run_id: c.held for c in problem.claims}

    assert left(NodeLost(1)) == (12, {1: 4, 2: 6})
    assert left(NodeLost(None)) == (12, {1: 6, 2: 6})
    assert left(NodeReturned()) == (16, {1: 6, 2: 6})
    assert left(RunEnded(1)) == (8, {2: 6}), "Slurm's queue gets what it held"
    assert left(RunEnded(1), keeps_freed=True) == (14, {2: 6})
    assert left(RunStarted(3)) == (14, {1: 6, 2: 6, 3: 2})
    assert left(SwitchLost("s1")) == (8, {1: 2, 2: 6})
    assert left(SwitchLost("s2")) == (6, {1: 4, 2: 0})


def test_a_division_lasts_longer_once_workers_are_lost_and_may_return() -> None:
    pools = {"gpu": Pool("gpu", 14, failures_per_worker_second=1e-5)}
    state = replace(STATE, problem=replace(STATE.problem, pools=pools, horizon_seconds=1e9))
    assert state.problem.running_seconds == pytest.approx(1 / 14e-5)
    assert after(state, NodeLost(1)).running_seconds == pytest.approx(1 / 12e-5)

    def away(event: Event) -> int:
        known = {"gpu": replace(pools["gpu"], away=2, return_seconds=3600.0)}
        there = replace(state, problem=replace(state.problem, pools=known))
        return after(there, event).pools["gpu"].away

    assert [away(e) for e in (NodeLost(1), NodeLost(None), NodeReturned())] == [3, 3, 1]
    assert [away(e) for e in (SwitchLost("s2"), RunEnded(1), RunStarted(3))] == [6, 2, 2]


def test_a_look_up_takes_a_small_part_of_a_tenth_of_a_millisecond() -> None:
    prepared = prepare(STATE, "now")
    fastest = min(timeit.repeat(lambda: prepared.lookup("now", RunEnded(2)), number=100, repeat=5))
    assert fastest / 100 < 100e-6


def test_a_stale_table_answers_nothing() -> None:
    prepared = prepare(STATE, "generation 7")
    assert prepared.lookup("generation 8", NodeLost(1)) is None
    assert prepared.lookup("generation 7", NodeLost(99)) is None


def test_an_event_that_leaves_no_legal_division_says_so() -> None:
    tight = cluster(claim(1, size=6, flops=EVEN, floor=6), workers=6)
    prepared = prepare(State(tight, "gpu", node_workers=2), "now")
    assert isinstance(prepared.lookup("now", NodeLost(1)), Infeasible)


def test_runs_of_another_pool_stay_out_of_the_table() -> None:
    both = {"gpu": np.array(EVEN), "old": np.array(EVEN)}
    problem = cluster(claim(1, size=6, throughput=both), claim(2, throughput=both, pool="old"))
    problem = replace(problem, pools={**problem.pools, "old": Pool("old", 4)})
    plan = plan_after(State(problem, "gpu", 2), NodeReturned())
    assert [share.pool for share in plan.shares] == ["gpu"]


def test_limits_by_account_hold_after_the_event_too() -> None:
    both = {"gpu": np.array(EVEN), "old": np.array(EVEN)}
    claims = (
        claim(1, size=6, throughput=both, account="physics"),
        claim(2, size=2, throughput=both, pool="old", account="physics"),
    )
    limits = {"physics": Limits(ceiling=8)}
    problem = cluster(*claims, pools={n: Pool(n, 12) for n in both}, accounts=limits)
    plan = plan_after(State(problem, "gpu", 2), NodeLost(1))
    assert sizes(plan) == [6], "two of eight are had elsewhere"
    assert sizes(plan_after(State(replace(problem, accounts={}), "gpu", 2), NodeLost(1))) == [10]
