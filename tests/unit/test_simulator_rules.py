"""What rules decide; the planner's rule is the plan that the failover table has ready."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from simworld import cluster, policy, run

from planner import failover
from planner.failover import NodeLost, NodeReturned, RunEnded
from planner.objective import Plan
from simulator.model import Freed, Queue, RunSpec
from simulator.rules import HOLD, Change, What, elastic, problem_of, replan, requeue, share, wait
from simulator.state import POOL, Phase, RunNow, State


def state(*runs: tuple[RunSpec, int], nodes: int = 16, free: int | None = None) -> State:
    """Each run trains on so many nodes; the others are free, or as many as said."""
    here = cluster(nodes, *(spec for spec, _ in runs), repair_seconds=math.inf)
    numbers = iter(range(nodes))
    known = {}
    for spec, size in runs:
        held = [next(numbers) for _ in range(size)]
        known[spec.run_id] = RunNow(spec, size, held, phase=Phase.TRAINING)
    rest = list(numbers)
    return State(here, policy("replan"), known, set(rest if free is None else rest[:free]))


def lose(here: State, run_id: int) -> Change:
    here.runs[run_id].lost.add(here.runs[run_id].nodes.pop())
    here.runs[run_id].phase = Phase.DETECTING
    return Change(What.LOST, run_id)


THREE = (run(1, least=2), 6), (run(2, weight=1.3), 5), (run(3, weight=0.7, least=3), 4)


def prepared(here: State) -> failover.Failover:
    claims = tuple(here.claim(now) for now in here.runs.values())
    floored = [
        replace(claim, floor=now.spec.least)
        for claim, now in zip(claims, here.runs.values(), strict=True)
    ]
    problem = problem_of(here, tuple(floored))
    return failover.prepare(failover.State(problem, POOL, 1, keeps_freed=True), "now")


def sizes(plan: object, ids: list[int]) -> dict[int, int]:
    assert isinstance(plan, Plan)
    return {i: share.size for i, share in zip(ids, plan.shares, strict=True)}


@pytest.mark.parametrize("run_id", [1, 2, 3])
def test_after_a_lost_node_it_is_the_prepared_plan(run_id: int) -> None:
    here = state(*THREE)
    plan = prepared(here).lookup("now", NodeLost(run_id))
    assert replan(here, lose(here, run_id)) == sizes(plan, [1, 2, 3])


def test_after_a_node_returned_it_is_the_prepared_plan() -> None:
    here = state(*THREE, free=0)
    plan = prepared(here).lookup("now", NodeReturned())
    here.free.add(15)
    assert replan(here, Change(What.BACK)) == sizes(plan, [1, 2, 3])


@pytest.mark.parametrize("run_id", [1, 2, 3])
def test_after_a_run_ended_it_is_the_prepared_plan(run_id: int) -> None:
    here = state(*THREE)
    plan = prepared(here).lookup("now", RunEnded(run_id))
    here.free.update(here.runs[run_id].nodes)
    here.runs[run_id].nodes, here.runs[run_id].phase = [], Phase.ENDED
    left = [i for i in (1, 2, 3) if i != run_id]
    assert replan(here, Change(What.ENDED, run_id)) == sizes(plan, left)


def test_nobody_gives_up_nodes_that_slurm_would_give_to_others() -> None:
    here = state((run(1, weight=9.0, least=3), 3), (run(2, weight=0.1), 12), nodes=15)
    change = lose(here, 1)
    assert replan(here, change)[1] == 13, "run 2 is left its least size"
    queue = Queue(Freed.SLURM, 1.0)
    bound = State(cluster(15, queue=queue), here.policy, here.runs, here.free)
    assert replan(bound, change) == {1: 0, 2: 14}, "two nodes are no legal size of run 1"


def test_whoever_has_least_for_its_weight_gets_more() -> None:
    here = state((run(1, weight=1.0), 8), (run(2, weight=3.0), 8))
    assert share(lambda now: now.spec.weight)(here, Change(What.BACK)) == {1: 4, 2: 12}
    assert share(lambda now: 1.0)(here, Change(What.BACK)) == {1: 8, 2: 8}


def test_shares_leave_out_who_cannot_have_its_least_size() -> None:
    here = state((run(1, least=10), 0), (run(2, least=10), 0))
    assert share(lambda now: 1.0)(here, Change(What.BEGIN)) == {1: 16, 2: 0}


def test_an_elastic_run_takes_a_spare_and_never_more_than_its_home_size() -> None:
    here = state((run(1), 4), nodes=8)
    assert elastic(here, Change(What.BACK)) == {}
    assert elastic(here, lose(here, 1)) == {1: 4}
    assert elastic(state((run(1), 4), nodes=4), Change(What.BACK)) == {}


def test_a_run_that_waits_is_served_before_one_that_waits_shorter() -> None:
    here = state((run(1), 4), (run(2), 4), nodes=8)
    for run_id, since in ((1, 20), (2, 10)):
        change = lose(here, run_id)
        assert wait(here, change) == {run_id: HOLD}
        here.runs[run_id].phase, here.runs[run_id].since = Phase.WAITING, since
    here.free.add(7)
    assert wait(here, Change(What.BACK)) == {2: 4}


def test_a_smaller_queued_run_overtakes_a_larger_one_that_does_not_fit() -> None:
    here = state((run(1), 4), (run(2), 2), nodes=6, free=0)
    for now in here.runs.values():
        now.nodes, now.phase, now.since = [], Phase.QUEUED, now.spec.run_id
    here.free = {0, 1, 2}
    assert requeue(here, Change(What.BACK)) == {2: 2}
