"""The planner beside the real core on a simulated cluster: it learns, and foresees each heal."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from beside import Beside
from test_chaos import fault
from world import World

from db.queries import Queries
from db.store import SqlStore, open_store
from planner.answer import next_answers
from planner.question import parse
from unicrond.model.events import ShareSet
from unicrond.model.run import RunState
from unicrond.planning.triggers import Cause


def sizes(found: dict[str, Any]) -> dict[int, int]:
    return {run["id"]: run["size"] for run in found["runs"]}


@pytest.fixture
def queries(tmp_path: Path) -> Iterator[Queries]:
    with closing(Queries(f"sqlite:///{tmp_path}/unicron.db")) as queries:
        yield queries


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with closing(open_store(f"sqlite:///{tmp_path}/unicron.db")) as store:
        world = World(store=store)
        world.nodes(8)
        yield world


def beside(world: World, queries: Queries) -> Beside:
    assert isinstance(world.store, SqlStore)
    found = Beside(world.store, queries)
    world.checks.append(found)
    return found


def size(world: World, job: int) -> int:
    assignment = world.run(job).assignment
    return len(assignment.nodes) if assignment else 0


def all_run(world: World, *jobs: int) -> None:
    world.until(lambda: all(j in world.core.state.runs for j in jobs))
    world.until(lambda: all(world.run(j).state is RunState.RUNNING for j in jobs))


def test_what_is_proposed_today_is_what_the_heal_then_does(world: World, queries: Queries) -> None:
    planner = beside(world, queries)
    shrinking, rigid = world.submit(3, min_nodes=1), world.submit(2)
    all_run(world, shrinking, rigid)
    assert sizes(planner.last(Cause.RUN_STARTED)["today"]) == {shrinking: 3, rigid: 2}
    world.pass_seconds(100)
    world.cut(world.run(shrinking).nodes[1])
    world.until(lambda: size(world, shrinking) == 2)
    plan = planner.last(Cause.SEV1)
    assert sizes(plan["today"]) == {shrinking: 2, rigid: 2}
    assert sizes(plan["unlimited"]) == {shrinking: 3, rigid: 2}  # other nodes are free
    all_run(world, shrinking)
    world.cut(world.run(rigid).nodes[1])
    world.until(lambda: world.run(rigid).state is RunState.REQUEUED)
    assert sizes(planner.last(Cause.SEV1)["today"])[rigid] == 0


def test_each_plan_is_told_in_the_story_beside_the_heal(world: World, queries: Queries) -> None:
    beside(world, queries)
    job = world.submit(3, min_nodes=1)
    all_run(world, job)
    world.cut(world.run(job).nodes[1])
    world.until(lambda: size(world, job) == 2)
    told = queries.story_of_run(job).items
    planned = [line for line in told if line.entry.kind == "plan"]
    first, second = (line.entry for line in planned[:2])
    assert first.text.startswith(f"run {job} started: every run keeps what it has")
    assert "not heard for" in second.text and f"run {job} shrinks from 3 to 2 nodes" in second.text
    for line in planned:
        assert line.decision is not None and not line.decision.acts
        assert [a.name for a in line.decision.alternatives][-1] == "unlimited"
    heal = next(line for line in told if line.entry.kind == "decision")
    assert heal.decision is not None and heal.decision.acts


def test_iterations_failures_and_changes_are_learned(world: World, queries: Queries) -> None:
    beside(world, queries)
    job = world.submit(3, min_nodes=1)
    all_run(world, job)
    world.pass_seconds(100)
    lost = world.run(job).nodes[1]
    world.cut(lost)
    world.until(lambda: size(world, job) == 2)
    all_run(world, job)
    world.pass_seconds(800)
    model = queries.learned("throughput", str(job))
    measured = {m["workers"]: m["seconds"] for m in model["measured"]}
    assert measured == {3: pytest.approx(1.0, rel=0.05), 2: pytest.approx(1.0, rel=0.05)}
    found = queries.learned("reliability", "cluster")
    assert [node["node"] for node in found["nodes"]] == [lost]
    shrink = next(t for t in found["transitions"] if t["kind"] == "shrink")
    assert shrink["seen"] == 1


def test_a_node_that_returns_and_a_run_that_ends_call_for_a_plan(
    world: World, queries: Queries
) -> None:
    planner = beside(world, queries)
    job, other = world.submit(2, min_nodes=1), world.submit(2)
    all_run(world, job, other)
    world.slurm.end(other, 0)
    world.until(lambda: other not in {run.run_id for run in world.core.state.live_runs()})
    world.pass_seconds(1)
    assert sizes(planner.last(Cause.RUN_ENDED)["today"]) == {job: 2}
    world.slurm.cut("n6")
    world.pass_seconds(400)
    world.slurm.restore("n6")
    world.pass_seconds(10)
    assert Cause.NODE_RETURNED in {cause for cause, _ in planner.plans}


def test_the_loss_of_a_switch_is_among_the_next_events_where_slurm_tells_its_topology(
    world: World, queries: Queries
) -> None:
    world.nodes(8, on_first_switch=5)
    planner = beside(world, queries)
    job = world.submit(6, min_nodes=1)
    all_run(world, job)
    question = planner.last(Cause.RUN_STARTED)["questions"]["unlimited"]
    switches = {node["name"]: node["switch"] for node in question["nodes"]}
    assert switches == {f"n{i}": "s1" if i <= 5 else "s2" for i in range(1, 9)}
    found = {entry["event"]: entry for entry in next_answers(parse(json.dumps(question)))}
    assert found["switch s1 is lost"]["sizes"] == {str(job): 3}, "one node left, two free ones"


def test_a_run_that_is_worth_more_or_guaranteed_more_gets_another_plan(
    world: World, queries: Queries
) -> None:
    planner = beside(world, queries)
    first, second = world.submit(4, min_nodes=1), world.submit(4, min_nodes=1)
    all_run(world, first, second)
    world.tell(ShareSet(world.clock.at, second, "root (a deadline)", weight=1000.0))
    world.pass_seconds(1)
    question = planner.last(Cause.WEIGHT_CHANGED)["questions"]["unlimited"]
    assert {run["id"]: run["weight"] for run in question["runs"]} == {first: 1.0, second: 1000.0}
    world.tell(ShareSet(world.clock.at, first, "root", floor_nodes=3))
    world.pass_seconds(1)
    plan = planner.last(Cause.WEIGHT_CHANGED)
    assert plan["questions"]["unlimited"]["runs"][0]["floor"] == 3
    assert sizes(plan["unlimited"])[first] >= 3
    told = "\n".join(line.entry.text for line in queries.story_of_run(second).items)
    assert f"weight of run {second} set from 1 to 1000 by root (a deadline)" in told
    assert f"weight of run {second} changed from 1 to 1000: " in told


@pytest.mark.parametrize("throw", range(4))
def test_in_chaos_a_run_is_to_wait_today_only_if_its_heal_requeues_it(
    world: World, queries: Queries, throw: int
) -> None:
    dice = random.Random(throw)
    planner = beside(world, queries)
    for i in range(2):
        size = dice.randint(2, 3)
        world.submit(size, min_nodes=dice.randint(1, size), user=f"u{i}", uid=1001 + i)
    world.pass_seconds(10)
    world.cut(world.run(1).nodes[-1])
    world.pass_seconds(10)
    for _ in range(5):
        fault(world, dice)
        world.pass_seconds(dice.choice([3, 8, 20, 50]))
    assert [
        doc for _, doc in planner.plans if "obstacle" in (doc["today"] | doc["unlimited"])
    ] == []
    compared = 0
    for incident in queries.incidents(limit=1000).items:
        lines = queries.story_of_incident(incident.incident_id, limit=1000).items
        planned = [line.entry.at for line in lines if line.entry.kind == "plan"]
        told = [x for x in lines if x.entry.kind == "decision" and x.entry.at in planned[:1]]
        healed = [line.decision for line in told if line.decision and line.decision.acts]
        if healed and incident.run_id is not None:
            choice = healed[0].choice
            waits = planner.at[planned[0]]["today"]["runs"]
            size = next(run["size"] for run in waits if run["id"] == incident.run_id)
            assert (choice == "requeue") == (size == 0)
            compared += 1
    assert compared
