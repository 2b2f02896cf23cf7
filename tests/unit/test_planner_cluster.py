"""From runs, nodes and what was learned to a proposal: nothing impossible is chosen today."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from planner.answer import answer
from planner.cluster import Cluster, Known, pool_of, questions
from planner.fairness import Guarantee
from planner.iteration import Measured, fit
from planner.proposal import Proposal, propose
from planner.question import parse
from planner.reliability import Watched, learn
from transition.membership import Trouble, choose
from unicrond.model.cluster import Allocation, JobState, Node, NodeState
from unicrond.model.incident import Incident, Scope, Severity
from unicrond.model.run import (
    AgentView,
    Assignment,
    Companion,
    Healing,
    HealStep,
    Run,
    RunState,
    Slot,
)
from unicrond.model.workload import BatchScaling, Layout, Workload

NOW = 1000.0
TOLD = Workload(1e15, BatchScaling.FIXED, 0, 0.0, workers=32)


def nodes(count: int, **more: Any) -> dict[str, Node]:
    found = [Node(f"n{i}", NodeState.UP, "IDLE", 8, ("gpu",), **more) for i in range(1, count + 1)]
    return {node.name: node for node in found}


def run(run_id: int, *names: str, **more: Any) -> Run:
    slots = tuple(Slot(i, f"m{i}", name, 0) for i, name in enumerate(names))
    told = {"weight": 1.0, "min_nodes": 1, "max_nodes": len(names), **more}
    return Run(
        run_id=run_id, name="r", user="u", uid=1, ranks_per_node=8, nodes=names,
        batch_host=names[0], restarts=0,
        generation=1, assignment=Assignment(1, "a", slots),
        agents={name: AgentView(name, "a", True, NOW) for name in names},
        **{"state": RunState.RUNNING, "workload": TOLD, **told},
    )  # fmt: skip


def lost(of: Run, node: str, severity: Severity = Severity.SEV1) -> Incident:
    return Incident(1, NOW, "lost connection", severity, Scope.NODE, of.run_id, 1, node, None)


def others(job: int, *names: str) -> Allocation:
    batch_host = names[0] if names else ""
    return Allocation(job, "x", "v", 2, "", "gpu", JobState.RUNNING, names, batch_host, 8)


def cluster(
    there: dict[str, Node],
    *runs: Run,
    incidents: Sequence[Incident] = (),
    jobs: Sequence[Allocation] = (),
) -> Cluster:
    return Cluster(NOW, runs, there, jobs, incidents)


def known(*runs: Run) -> Known:
    """Nearly linear in the workers."""
    fits = {r.run_id: fit(r.workload, [Measured(8 * len(r.nodes), (1.0,) * 4)]) for r in runs}
    return Known(fits=fits)


def proposed(seen: Cluster) -> Proposal:
    found = propose(seen, known(*seen.runs))
    assert found is not None
    return found


def sizes(found: object) -> dict[int, int]:
    assert isinstance(found, dict)
    return {run["id"]: run["size"] for run in found["runs"]}


def test_without_runs_there_is_nothing_to_propose() -> None:
    assert propose(cluster(nodes(4)), Known()) is None


def test_a_run_that_lost_a_node_goes_on_with_the_rest_and_takes_no_free_node_today() -> None:
    hurt, sound = run(7, "n1", "n2", "n3", max_nodes=4), run(8, "n4")
    found = proposed(cluster(nodes(6), hurt, sound, incidents=[lost(hurt, "n2")]))
    assert sizes(found.doc["today"]) == {7: 2, 8: 1}
    assert sizes(found.doc["unlimited"]) == {7: 4, 8: 1}
    assert found.choice == "shrink"
    assert "run 7 shrinks from 3 to 2 nodes" in found.reason


def test_what_is_proposed_today_is_what_the_heal_would_go_on_with() -> None:
    hurt = run(7, "n1", "n2", "n3", "n4", min_nodes=2, max_nodes=4)
    for bad in (("n2",), ("n1", "n2"), ("n1", "n2", "n3")):
        there = nodes(4)
        there |= {name: replace(there[name], state=NodeState.DOWN) for name in bad}
        found = proposed(cluster(there, hurt))
        choice = choose(hurt, Trouble(bad[0], lost=bad), restarts_allowed=3)
        assert sizes(found.doc["today"])[7] == (
            len(choice.nodes) if choice.step is HealStep.STOP else 0
        )


def test_nodes_that_only_the_core_knows_to_avoid_are_not_gone_on_with() -> None:
    hurt = run(7, "n1", "n2", "n3")
    seen = replace(cluster(nodes(3), hurt), avoided={7: frozenset({"n2", "n3"})})
    assert sizes(proposed(seen).doc["today"]) == {7: 1}


def test_a_lost_batch_host_is_no_reason_to_requeue_today() -> None:
    hurt = run(7, "n1", "n2", "n3")
    found = proposed(cluster(nodes(3), hurt, incidents=[lost(hurt, "n1")]))
    assert "run 7 shrinks from 3 to 2 nodes" in found.reason


def test_a_run_that_needs_all_its_nodes_waits() -> None:
    hurt = run(7, "n1", "n2", min_nodes=2)
    found = proposed(cluster(nodes(3), hurt, incidents=[lost(hurt, "n2")]))
    assert found.choice == "requeue"
    assert sizes(found.doc["unlimited"]) == {7: 2}  # a spare is there


def test_a_run_whose_processes_failed_restarts_where_it_is() -> None:
    hurt = run(7, "n1", "n2")
    found = proposed(cluster(nodes(3), hurt, incidents=[lost(hurt, "n2", Severity.SEV2)]))
    assert (found.choice, sizes(found.doc["today"])) == ("restart", {7: 2})


def test_an_incident_of_an_earlier_generation_is_over() -> None:
    healed = run(7, "n1", "n2")
    old = replace(lost(healed, "n2"), generation=0)
    assert proposed(cluster(nodes(2), healed, incidents=[old])).choice == "stay"


def test_a_heal_at_work_counts_as_broken() -> None:
    healing = Healing(1, HealStep.STOP, NOW, NOW, ("n1",), lost=("n2",))
    hurt = replace(run(7, "n1", "n2"), healing=healing, state=RunState.HEALING)
    assert sizes(proposed(cluster(nodes(2), hurt)).doc["today"]) == {7: 1}


def test_nodes_of_others_are_occupied_and_drained_ones_not_there() -> None:
    there = nodes(6)
    there["n6"] = replace(there["n6"], state=NodeState.DRAINED)
    growing = run(7, "n1", max_nodes=6)
    found = proposed(cluster(there, growing, jobs=[others(99, "n2", "n3")]))
    assert sizes(found.doc["unlimited"]) == {7: 3}  # n1, n4, n5


def test_nodes_of_another_type_are_another_pool() -> None:
    there = nodes(2) | {"n3": replace(nodes(3)["n3"], gpu_type="h100")}
    found = proposed(cluster(there, run(7, "n1", max_nodes=3)))
    assert sizes(found.doc["unlimited"]) == {7: 2}
    assert pool_of(there["n3"]) == "h100x8@gpu"


def test_a_requeued_run_waits_and_would_be_started() -> None:
    since = Healing(1, HealStep.REQUEUE, NOW - 60, NOW, ())
    waiting = replace(run(7, "n1", "n2"), state=RunState.REQUEUED, assignment=None, healing=since)
    seen = cluster(nodes(3), waiting)
    assert seen.standings[0].waited_seconds == 60
    found = proposed(seen)
    assert sizes(found.doc["today"]) == {7: 0}
    assert sizes(found.doc["unlimited"]) == {7: 2}


def test_a_run_on_parts_of_nodes_is_not_planned_for_and_occupies_them() -> None:
    part = replace(run(7, "n1"), whole_nodes=False)
    seen = cluster(nodes(3), part, run(8, "n2", max_nodes=3), jobs=[others(7, "n1")])
    assert sizes(proposed(seen).doc["unlimited"]) == {8: 2}


def test_what_is_taken_for_granted_is_said() -> None:
    blind, untold = run(7, "n1"), run(8, "n2", workload=Workload())
    seen = cluster(nodes(2), blind, untold)
    fits = {8: fit(Workload(), [Measured(8, (1.0,))])}
    found = propose(seen, Known(fits=fits))
    assert found is not None
    assert found.doc["assumed"] == [
        "run 7: nothing measured or told yet; counted as a usual model",
        "run 8: FLOPs not told; samples/s counted as a usual model's FLOP/s",
    ]
    wafs = [r["waf"] for r in found.doc["today"]["runs"]]  # type: ignore[index]
    assert wafs[0] == pytest.approx(wafs[1])


def test_sizes_that_no_layout_fits_are_not_proposed() -> None:
    few = replace(TOLD, micro_batches=24)  # three nodes of eight at most
    wide = run(7, "n1", "n2", max_nodes=6, workload=few)
    assert sizes(proposed(cluster(nodes(6), wide)).doc["unlimited"]) == {7: 3}


def test_a_heal_onto_a_size_that_no_layout_fits_is_no_way_on() -> None:
    whole = replace(TOLD, layouts=(Layout(8, 3),), workers=24)
    hurt = run(7, "n1", "n2", "n3", workload=whole)
    found = proposed(cluster(nodes(3), hurt, incidents=[lost(hurt, "n2")]))
    assert (found.choice, sizes(found.doc["today"])) == ("requeue", {7: 0})


def test_a_run_that_fits_nowhere_waits_and_hinders_no_other_plan() -> None:
    since = Healing(1, HealStep.REQUEUE, NOW - 60, NOW, ())
    huge = replace(TOLD, layouts=(Layout(64, 1),), workers=64)
    waiting = replace(
        run(7, "n1", workload=huge), state=RunState.REQUEUED, assignment=None, healing=since
    )
    seen = cluster(nodes(3), waiting, run(8, "n2"))
    found = propose(seen, Known(fits={7: fit(huge, ()), 8: None}))
    assert found is not None
    assert sizes(found.doc["unlimited"]) == sizes(found.doc["today"]) == {7: 0, 8: 1}


def test_a_workload_that_reality_contradicts_is_not_believed() -> None:
    wrong = run(7, "n1", "n2", "n3", workload=replace(TOLD, micro_batches=2))
    found = proposed(cluster(nodes(3), wrong, incidents=[lost(wrong, "n2")]))
    assert sizes(found.doc["today"]) == {7: 2}


def test_the_questions_can_be_asked_again_as_what_ifs() -> None:
    found = proposed(cluster(nodes(3), run(7, "n1", "n2", max_nodes=3)))
    asked = found.doc["questions"]
    assert isinstance(asked, dict)
    for name in ("today", "unlimited"):
        assert answer(parse(json.dumps(asked[name]))) == found.doc[name]


def test_reliability_and_lemons_are_in_the_question() -> None:
    there = nodes(3)
    watched = [Watched(name, pool_of(node), 1000.0) for name, node in there.items()]
    told = replace(known(), reliability=learn(watched, (), NOW))
    today, unlimited, _ = questions(cluster(there, run(7, "n1")), told)
    assert 0 < today["pools"][0]["failures_per_1000_node_days"] < 4.2
    assert [node["pinned"] for node in unlimited["nodes"]] == [True, False, False]


def test_the_alternatives_name_price_and_pay_back_and_the_unlimited_plan() -> None:
    hurt = run(7, "n1", "n2", "n3", max_nodes=4)
    found = proposed(cluster(nodes(5), hurt, incidents=[lost(hurt, "n2")]))
    names = [option.name for option in found.alternatives]
    assert names == ["stay", "swap", "requeue", "shrink", "redivide", "unlimited"]
    chosen = next(option for option in found.alternatives if option.chosen)
    assert "price" in chosen.price and "paid back in" in chosen.price
    swap = found.alternatives[1]
    assert swap.price == "not possible: 3 is no legal size of run 7"
    assert "not all of it can be carried out" in found.alternatives[-1].price


def shared(**limits: Guarantee) -> Proposal:
    """Two runs that want all of six nodes, of two accounts; a is the one that is worth more."""
    rich, poor = run(7, "n1", "n2", "n3", max_nodes=6), run(8, "n4", max_nodes=6)
    jobs = [replace(others(7, *rich.nodes), account="a"), replace(others(8, "n4"), account="b")]
    seen = cluster(nodes(6), replace(rich, weight=50.0), poor, jobs=jobs)
    found = propose(seen, replace(known(rich, poor), accounts=limits))
    assert found is not None
    return found


def test_accounts_have_their_floors_and_ceilings_in_the_unlimited_plan() -> None:
    assert sizes(shared().doc["unlimited"]) == {7: 6, 8: 0}
    assert sizes(shared(b=Guarantee(floor_nodes=2)).doc["unlimited"]) == {7: 4, 8: 2}
    assert sizes(shared(a=Guarantee(ceiling_nodes=5)).doc["unlimited"]) == {7: 5, 8: 1}
    assert sizes(shared(b=Guarantee(run_floor_nodes=1)).doc["unlimited"]) == {7: 5, 8: 1}
    assert sizes(shared(a=Guarantee(run_ceiling_nodes=2)).doc["unlimited"]) == {7: 2, 8: 4}
    assert sizes(shared(b=Guarantee(floor_nodes=99)).doc["unlimited"]) == {7: 0, 8: 6}


def test_today_nobody_is_below_its_guarantee_or_above_its_limit_but_who_is_so_already() -> None:
    assert sizes(shared().doc["today"]) == {7: 5, 8: 1}, "one node is the least that 8 may have"
    assert sizes(shared(b=Guarantee(floor_nodes=99)).doc["today"]) == {7: 5, 8: 1}
    assert sizes(shared(a=Guarantee(ceiling_nodes=4)).doc["today"]) == {7: 4, 8: 2}
    assert sizes(shared(a=Guarantee(ceiling_nodes=2)).doc["today"]) == {7: 3, 8: 3}
    assert sizes(shared(a=Guarantee(run_ceiling_nodes=2)).doc["today"]) == {7: 3, 8: 3}


def moved(*runs: Run, jobs: Sequence[Allocation] = (), **more: Any) -> dict[int, int]:
    """Sizes before and after of what today's plan moves, six nodes being there."""
    found = proposed(cluster(nodes(6), *runs, jobs=jobs, **more))
    return {r.run_id: r.nodes for r in found.runs if r.nodes != r.before}


def test_idle_nodes_go_today_to_who_may_grow_and_to_nobody_else() -> None:
    small, rigid = run(7, "n1", "n2", max_nodes=4), run(8, "n3")
    assert moved(small, rigid) == {7: 4}
    assert moved(replace(small, max_nodes=2, min_nodes=2), rigid) == {}
    assert moved(replace(small, no_growth_until=NOW + 1), rigid) == {}
    assert moved(replace(small, hands_off_until=NOW + 1), rigid) == {}
    on_its_way = Companion(1, 1, 0, NOW, NOW + 9, job_id=70)
    assert moved(replace(small, companions=(on_its_way,)), rigid) == {}


def test_a_run_that_heals_keeps_the_others_of_its_pool_as_they_are() -> None:
    hurt, small = run(7, "n1", "n2", min_nodes=1), run(8, "n3", max_nodes=4)
    assert moved(hurt, small, incidents=[lost(hurt, "n2")]) == {}
    long_ago = replace(lost(hurt, "n2"), opened_at=NOW - 3600)
    assert moved(hurt, small, incidents=[long_ago]) == {8: 4}, "nobody heals it"


def test_while_another_job_waits_for_nodes_nobody_grows() -> None:
    small = run(7, "n1", "n2", max_nodes=4)
    base = others(7, "n1", "n2")
    waits = replace(others(9), state=JobState.PENDING, nodes=(), reason="Resources", gpus=32)
    assert moved(small, jobs=[base, waits]) == {}
    assert moved(small, jobs=[base, replace(waits, gpus=40)]) == {7: 4}, "it cannot start anyway"
    assert moved(small, jobs=[base, replace(waits, reason="Dependency")]) == {7: 4}
    assert moved(small, jobs=[base, replace(waits, partition="other")]) == {7: 4}


def test_what_is_lent_goes_to_the_run_that_is_worth_more() -> None:
    rich, poor = run(7, "n1", "n2", max_nodes=3, weight=50.0), run(8, "n3", "n4", "n5", "n6")
    assert moved(rich, poor) == {7: 3, 8: 3}
    assert moved(rich, replace(poor, floor_nodes=4)) == {}


def test_floors_that_do_not_fit_are_left_out_and_it_is_said() -> None:
    found = shared(a=Guarantee(floor_nodes=5), b=Guarantee(floor_nodes=5))
    assert sizes(found.doc["unlimited"]) == {7: 6, 8: 0}
    assert any("nothing is guaranteed" in note for note in found.doc["assumed"])  # type: ignore[attr-defined]


def test_a_run_has_the_floor_that_an_admin_gave_it() -> None:
    rich, poor = run(7, "n1", "n2", "n3", max_nodes=6), run(8, "n4", max_nodes=6, floor_nodes=2)
    found = proposed(cluster(nodes(6), replace(rich, weight=50.0), poor))
    assert sizes(found.doc["unlimited"]) == {7: 4, 8: 2}
