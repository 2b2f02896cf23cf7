"""Nodes that are to go, and nodes that come back."""

from __future__ import annotations

import pytest
from world import World, kinds, running

from unicrond.core.returns import settle_seconds
from unicrond.model.cluster import NodeState
from unicrond.model.decision import ActionKind, Mode
from unicrond.model.run import RunState


@pytest.fixture
def world() -> World:
    world = World()
    world.nodes(5)
    return world


def state_of(world: World, node: str) -> NodeState:
    return world.slurm.snapshot().nodes[node].state


def lost_and_back(world: World, node: str) -> None:
    """A run lost it, it was drained, and its cable is plugged in again."""
    world.cut(node)
    world.until(lambda: ActionKind.SHRINK in kinds(world))
    world.until(lambda: state_of(world, node) is NodeState.DOWN)
    world.restore(node)


def test_a_run_leaves_a_node_that_a_person_drains_and_gives_it_back(world: World) -> None:
    job = running(world, min_nodes=2)
    world.slurm.drain_by_person("n2", "bad fan")
    world.until(lambda: world.run(job).generation == 2 and world.run(job).state is RunState.RUNNING)
    assert world.run(job).assignment.nodes == ("n1", "n3")
    world.until(lambda: world.run(job).nodes == ("n1", "n3"))
    assert world.slurm.snapshot().nodes["n2"].reason == "bad fan"
    assert world.core.state.incidents == {}


def test_ranks_have_left_before_the_node_is_given_back(world: World) -> None:
    running(world, min_nodes=2)
    world.slurm.drain_by_person("n2", "bad fan")
    world.until(lambda: ActionKind.SHRINK in kinds(world))
    done = kinds(world)
    assert done.index(ActionKind.START_RANKS) < done.index(ActionKind.SHRINK)


def test_a_run_that_needs_all_its_nodes_is_requeued_onto_free_ones(world: World) -> None:
    job = running(world)
    world.slurm.drain_by_person("n2", "bad fan")
    took = world.until(
        lambda: world.run(job).restarts == 1 and world.run(job).state is RunState.RUNNING
    )
    assert took < 15
    assert "n2" not in world.run(job).nodes


def test_a_run_leaves_a_drained_batch_host_by_way_of_the_queue(world: World) -> None:
    """A job cannot give it back."""
    job = running(world, min_nodes=2)
    world.slurm.drain_by_person("n1", "bad fan")
    world.until(lambda: world.run(job).restarts == 1 and world.run(job).state is RunState.RUNNING)
    assert "n1" not in world.run(job).nodes


def test_a_run_with_nowhere_to_go_stays_and_says_so_once() -> None:
    world = World()
    world.nodes(3)
    job = running(world)
    world.slurm.drain_by_person("n2", "bad fan")
    world.pass_seconds(60)
    assert world.performed == []
    assert world.run(job).state is RunState.RUNNING
    told = [e for e in world.store.journal if "nowhere else to go" in e.text]
    assert len(told) == 1


def test_a_run_is_not_requeued_while_others_wait_for_nodes(world: World) -> None:
    """It might not get its own back: worse than Slurm, which lets it run on."""
    job, other = running(world), world.submit(5, user="bob", uid=1002)
    world.pass_seconds(3)
    world.slurm.drain_by_person("n2", "bad fan")
    world.pass_seconds(30)
    assert world.performed == []
    world.slurm.scancel(other)
    world.until(lambda: world.run(job).restarts == 1 and world.run(job).state is RunState.RUNNING)
    assert "n2" not in world.run(job).nodes


def test_only_observed_nothing_moves(world: World) -> None:
    running(world, min_nodes=2)
    world.core.state.mode = Mode.OBSERVE
    world.slurm.drain_by_person("n2", "bad fan")
    world.pass_seconds(30)
    assert world.performed == []


def test_a_run_leaves_before_a_maintenance_window_begins(world: World) -> None:
    job = running(world, min_nodes=2)
    world.slurm.announce_maintenance("n3", world.clock.at + 1000)
    world.pass_seconds(600)
    assert world.run(job).generation == 1
    took = world.until(lambda: world.run(job).generation == 2)
    assert 90 < took < 110
    assert world.run(job).assignment.nodes == ("n1", "n2")


def test_a_lost_node_is_used_again_once_it_was_well_for_a_while(world: World) -> None:
    running(world, min_nodes=2)
    lost_and_back(world, "n2")
    took = world.until(lambda: state_of(world, "n2") is NodeState.UP)
    assert 60 <= took < 70
    probes = [a for a in world.performed if a.kind is ActionKind.PROBE and a.run_id is None]
    assert len(probes) >= 3
    assert world.slurm.snapshot().nodes["n2"].reason == ""


def test_a_node_that_does_not_answer_probes_is_not_used(world: World) -> None:
    running(world, min_nodes=2)
    lost_and_back(world, "n2")
    world.agents.cut_from_unicrond.add("n2")
    world.pass_seconds(300)
    assert state_of(world, "n2") is not NodeState.UP
    world.agents.cut_from_unicrond.clear()
    world.until(lambda: state_of(world, "n2") is NodeState.UP, within_seconds=80)


def test_a_node_with_another_reason_by_now_is_left_alone(world: World) -> None:
    running(world, min_nodes=2)
    lost_and_back(world, "n2")
    world.slurm.drain_by_person("n2", "bad fan")
    world.pass_seconds(300)
    assert ActionKind.RESUME not in kinds(world)
    assert world.slurm.snapshot().nodes["n2"].reason == "bad fan"


def test_no_more_nodes_than_the_budget_allows_are_given_back_within_an_hour(world: World) -> None:
    running(world, min_nodes=2)
    world.core.state.returns = [(world.clock.at, f"x{i}") for i in range(4)]
    lost_and_back(world, "n2")
    world.pass_seconds(300)
    assert state_of(world, "n2") is not NodeState.UP


def test_a_node_that_was_lost_again_and_again_waits_longer_each_time(world: World) -> None:
    state, now = world.core.state, world.clock.at
    seconds = []
    for _ in range(4):
        seconds.append(settle_seconds(state, "n1", now))
        state.drains.append((now, "n1"))
    policy = state.policy
    settle = policy.return_settle_seconds
    assert seconds == [settle, settle, 4 * settle, policy.quarantine_seconds]
