"""Nodes that a run does not use come into it while the others train on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checkers import Checkers
from regrouping import FIRST, choices, elastic, goes_on, interrupted, kept, story_of
from world import World, kinds

from transition.membership import legal_size
from unicrond.model.decision import ActionKind, Mode
from unicrond.model.events import ModeSet
from unicrond.model.run import LossState, Run, RunState
from unicrond.model.workload import Layout, Workload


@pytest.fixture
def world() -> World:
    world = World()
    world.checks.append(Checkers())
    world.nodes(6)
    return world


def test_where_it_may_shrink_the_others_train_on_at_once_and_the_node_follows(
    world: World,
) -> None:
    job = elastic(world, min_nodes=2)
    world.agents.kill_rank(job, "n2")
    assert goes_on(world, job) < 1.5
    assert world.run(job).assignment.nodes == ("n1", "n3")
    assert len(kept(world, job)) == 4
    assert "n2 to follow once new ranks are prepared there" in story_of(world)
    step = world.agents.jobs[job].step
    goes_on(world, job, 3)
    assert world.agents.jobs[job].step >= step + 2, "they train while it is prepared"
    assert world.run(job).assignment.nodes == ("n1", "n3", "n2")
    assert kept(world, job) == [("n1", 0), ("n1", 1), ("n3", 0), ("n3", 1)]
    members = {slot.member for slot in world.agents.jobs[job].agents["n2"].slots()}
    assert members == {"u:2.3.4", "u:2.3.5"}
    assert choices(world) == ["shrink", "grow", "grow"]
    assert ActionKind.STOP_RANKS in kinds(world), "the other rank of n2"
    world.pass_seconds(30)
    assert world.run(job).generation == 3 and world.core.state.incidents == {}


def test_a_node_that_comes_back_joins_the_run_that_left_it(world: World) -> None:
    job = elastic(world, min_nodes=2)
    world.slurm.stop_controller()  # it can be neither drained nor given back meanwhile
    world.cut("n2")
    goes_on(world, job)
    world.restore("n2")
    goes_on(world, job, 3)
    assert world.run(job).assignment.nodes == ("n1", "n3", "n2")
    assert world.run(job).loss_of("n2").state is LossState.RETURNED


def test_a_node_that_a_person_drained_does_not_join(world: World) -> None:
    job = elastic(world, min_nodes=2)
    world.slurm.drain_by_person("n2", "bad fan")
    world.agents.kill_rank(job, "n2")
    goes_on(world, job)
    world.pass_seconds(60)
    assert world.run(job).generation == 2


def test_a_rank_that_dies_while_others_are_prepared_is_healed_first(world: World) -> None:
    job = elastic(world, 4, min_nodes=2)
    world.agents.kill_rank(job, "n2")
    world.until(lambda: world.run(job).joining is not None)
    world.agents.kill_rank(job, "n3")
    goes_on(world, job, 3)
    assert world.run(job).assignment.nodes == ("n1", "n4")
    goes_on(world, job, 4)
    assert sorted(world.run(job).assignment.nodes) == ["n1", "n2", "n3", "n4"]
    assert world.core.state.incidents == {}


@pytest.mark.parametrize("fault", ["deaf", "dies", "paused"])
def test_nodes_that_cannot_join_are_left_where_they_are(world: World, fault: str) -> None:
    job = elastic(world, min_nodes=2)
    if fault == "deaf":
        world.lost_orders.add((ActionKind.PREPARE_RANKS, "n2"))
    world.agents.kill_rank(job, "n2")
    world.until(lambda: world.run(job).joining is not None)
    if fault == "dies":
        world.cut("n2")
    elif fault == "paused":
        world.tell(ModeSet(world.clock.at, Mode.PAUSED, "root"))
    world.until(lambda: world.run(job).joining is None, within_seconds=150)
    assert world.run(job).generation == 2 and world.run(job).state is RunState.RUNNING
    assert world.core.state.incidents == {}


def test_a_node_whose_ranks_die_again_and_again_joins_no_more(world: World) -> None:
    job = elastic(world, min_nodes=2)
    for generation in (2, 4, 6, 8):
        world.agents.kill_rank(job, "n2")
        goes_on(world, job, generation)
        if generation < 8:
            goes_on(world, job, generation + 1)
            world.pass_seconds(5)
    world.pass_seconds(60)
    assert world.run(job).assignment.nodes == ("n1", "n3")


WRITES = interrupted(0, after=False, least=2).store.writes


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("write", range(FIRST, WRITES + 1))
def test_killed_at_any_write_the_node_joins_those_that_went_on_without_it(
    write: int, after: bool
) -> None:
    world = interrupted(write, after, least=2)
    assert world.run(1).state is RunState.RUNNING
    assert sorted(world.run(1).assignment.nodes) == ["n1", "n2", "n3"]
    assert len(kept(world, 1)) >= 4
    assert world.core.state.pending == {} and world.core.state.incidents == {}


# ---------------------------------------------------------------- whole replicas


def test_only_whole_replicas_go_on_and_only_whole_ones_join() -> None:
    """Two nodes hold one: whoever loses its other half waits until a node is back."""
    world = World()
    world.checks.append(Checkers())
    world.nodes(4)
    layout = Workload(layouts=(Layout(tensor=2, pipeline=2),))
    job = elastic(world, 4, min_nodes=2, workload=layout)
    world.agents.kill_rank(job, "n2")
    goes_on(world, job)
    assert len(world.run(job).assignment.nodes) == 4, "three hold one replica and a half"
    world.pass_seconds(5)
    world.cut("n2")
    goes_on(world, job, 3)
    assert world.run(job).assignment.nodes == ("n1", "n3")
    world.pass_seconds(30)
    assert world.run(job).generation == 3, "n4 alone is no replica"


@pytest.mark.parametrize(
    ("ranks_per_node", "workers", "most", "size"),
    [
        (1, 1, 5, 5),
        (2, 4, 5, 4),
        (8, 2, 5, 5),
        (2, 3, 5, 3),
        (2, 8, 3, 0),
        (8, 64, 17, 16),
        (1, 7, 5, 5),
    ],
)
def test_the_largest_size_of_whole_replicas(
    ranks_per_node: int, workers: int, most: int, size: int
) -> None:
    run = replace(wish(), ranks_per_node=ranks_per_node)
    run = replace(run, workload=Workload(layouts=(Layout(tensor=workers),)))
    assert legal_size(run, most) == size


def wish() -> Run:
    nodes = tuple(f"n{number}" for number in range(1, 25))
    return Run(1, "run", "alice", 1001, 1.0, 1, 24, 1, nodes, "n1", 0)
