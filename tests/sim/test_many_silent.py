"""Many silent at once: lost only if the run's own survivors say so, and not beyond a limit."""

from __future__ import annotations

import pytest
from checkers import Checkers
from world import World

from db.memory import MemoryStore
from unicrond.core.policy import Policy
from unicrond.model.cluster import NodeState
from unicrond.model.decision import ActionKind, Mode
from unicrond.model.events import ModeSet
from unicrond.model.incident import IncidentState
from unicrond.model.run import LossState, RunState

FIVE = ("n2", "n3", "n4", "n5", "n6")


@pytest.fixture
def world() -> World:
    world = World()
    world.checks.append(Checkers())
    world.nodes(12)
    return world


def running(world: World, nodes: int = 12, min_nodes: int = 4) -> int:
    job = world.submit(nodes, min_nodes=min_nodes)
    world.until(lambda: job in world.core.state.runs and world.run(job).state is RunState.RUNNING)
    world.pass_seconds(6)
    return job


def kinds(world: World) -> list[ActionKind]:
    return [action.kind for action in world.performed]


def cut(world: World, nodes: tuple[str, ...] = FIVE) -> None:
    for node in nodes:
        world.cut(node)


def restore(world: World, nodes: tuple[str, ...] = FIVE) -> None:
    for node in nodes:
        world.restore(node)
        world.agents.cut_from_unicrond.discard(node)


def heals(world: World, job: int, generation: int = 2, within_seconds: float = 15) -> float:
    return world.until(
        lambda: (
            world.run(job).generation == generation and world.run(job).state is RunState.RUNNING
        ),
        within_seconds,
    )


def story(world: World) -> str:
    assert isinstance(world.store, MemoryStore)
    return "\n".join(entry.text for entry in world.store.journal)


def test_many_that_the_survivors_miss_too_are_lost_and_cost_one_decision(world: World) -> None:
    job = running(world)
    cut(world)
    took = heals(world, job)
    assert world.core.state.policy.lease_seconds < took < 10
    assert world.run(job).assignment.nodes == ("n1", "n7", "n8", "n9", "n10", "n11", "n12")
    assert isinstance(world.store, MemoryStore)
    assert [decision.choice for decision in world.store.decisions] == ["shrink"]
    world.pass_seconds(5)
    states = [world.run(job).loss_of(node).state for node in FIVE]
    assert states == [LossState.RELEASED] * 4 + [LossState.KEPT], "four drains an hour, no more"
    assert "refused" not in story(world)


def test_many_of_one_run_that_nobody_misses_decide_nothing_and_call_a_person(world: World) -> None:
    job = running(world)
    world.agents.linked_to_peers = False
    cut(world)
    world.pass_seconds(9)
    assert world.performed == []
    world.pass_seconds(20)
    assert kinds(world) == [ActionKind.NOTIFY]
    assert world.run(job).generation == 1
    what = "nobody who hears the rest of the run misses n2,n3,n4,n5,n6: deciding nothing"
    assert world.performed[0].args["reason"] == what
    restore(world)
    heals(world, job)
    assert len(world.run(job).assignment.nodes) == 12, "all are back, their ranks had stopped"
    assert world.core.state.incidents == {}


def test_many_that_slurm_takes_from_the_job_are_in_doubt_no_more(world: World) -> None:
    job = running(world)
    world.agents.linked_to_peers = False
    cut(world)
    world.until(lambda: world.slurm.snapshot().nodes["n2"].state is NodeState.DOWN)
    heals(world, job)
    assert world.run(job).assignment.world_size == 7


def test_a_few_that_nobody_misses_are_lost_as_ever(world: World) -> None:
    job = running(world)
    world.agents.linked_to_peers = False
    cut(world, ("n2", "n3", "n4"))
    heals(world, job)


def test_those_cut_together_count_together_though_beats_end_one_after_another(
    world: World,
) -> None:
    job = running(world)
    world.agents.linked_to_peers = False
    cut(world, ("n2", "n3", "n4"))
    world.pass_seconds(1)
    cut(world, ("n5", "n6"))
    world.pass_seconds(20)
    assert kinds(world) == [ActionKind.NOTIFY]
    assert world.run(job).generation == 1


def test_more_than_may_be_lost_at_once_is_a_persons(world: World) -> None:
    world.nodes(12, on_first_switch=8)
    job = running(world)
    cut(world, (*FIVE, "n7", "n8"))
    world.pass_seconds(25)
    assert kinds(world) == [ActionKind.NOTIFY]
    assert world.run(job).generation == 1
    assert "7 of 12 nodes are lost at once, all on switch s1: deciding nothing" in story(world)
    world.tell(ModeSet(world.clock.at, Mode.ACTIVE, "an admin"))
    world.pass_seconds(1)
    assert world.run(job).healing is None, "a mode does not make it less than it is"
    restore(world, ("n7", "n8"))
    heals(world, job, within_seconds=25)
    assert set(world.run(job).assignment.nodes).isdisjoint(FIVE)


def test_how_many_may_be_lost_at_once_is_a_number_of_the_policy() -> None:
    world = World(policy=Policy(mode=Mode.ACTIVE, many_lost_fraction=0.75))
    world.nodes(12)
    job = running(world)
    cut(world, (*FIVE, "n7", "n8"))
    heals(world, job)


def test_while_many_take_no_order_a_fault_of_another_rank_is_left_to_the_agents(
    world: World,
) -> None:
    """Else a management switch that fails would shrink the run, or requeue it."""
    job = running(world)
    world.agents.cut_from_unicrond.update(FIVE)
    world.pass_seconds(30)
    assert world.performed == [], "their peers hear them"
    world.agents.kill_rank(job, "n9")
    world.pass_seconds(30)
    assert kinds(world) == [ActionKind.NOTIFY]
    world.until(lambda: world.run(job).generation == 2)
    world.pass_seconds(5)
    restore(world)
    world.until(lambda: world.run(job).state is RunState.RUNNING, within_seconds=10)
    assert len(world.run(job).assignment.nodes) == 12
    assert world.core.state.incidents == {}


def test_a_fault_heard_while_many_take_no_order_is_healed_once_they_do(world: World) -> None:
    job = running(world)
    world.agents.cut_from_unicrond.update(FIVE)
    world.pass_seconds(30)
    world.agents.kill_rank(job, "n9")
    world.pass_seconds(20)
    restore(world)
    heals(world, job)
    assert world.run(job).assignment.world_size == 12


def test_a_heal_under_way_is_laid_down_when_many_fall_silent(world: World) -> None:
    job = running(world)
    world.agents.linked_to_peers = False
    cut(world)
    world.agents.kill_rank(job, "n9")
    world.pass_seconds(16)
    assert kinds(world)[-1] is ActionKind.NOTIFY
    assert ActionKind.START_RANKS not in kinds(world)
    assert world.run(job).healing is None
    [incident] = world.core.state.incidents.values()
    assert incident.state is IncidentState.PERSON
    restore(world)
    heals(world, job)
    assert world.core.state.incidents == {}


def test_a_large_run_that_is_not_heard_at_all_calls_a_person(world: World) -> None:
    job = running(world, 6)
    world.agents.cut_from_unicrond.update(f"n{i}" for i in range(1, 7))
    world.pass_seconds(40)
    assert kinds(world) == [ActionKind.NOTIFY]
    restore(world, tuple(f"n{i}" for i in range(1, 7)))
    world.pass_seconds(5)
    assert world.core.state.incidents == {}
    assert world.run(job).generation == 1


def test_a_person_is_called_although_unicrond_is_killed_meanwhile(world: World) -> None:
    job = running(world)
    world.agents.linked_to_peers = False
    cut(world)
    world.pass_seconds(12)
    world.kill_unicrond()
    world.pass_seconds(1)
    world.start_unicrond()
    world.pass_seconds(25)
    assert kinds(world) == [ActionKind.NOTIFY]
    restore(world)
    heals(world, job)


def test_several_runs_that_fall_silent_one_beat_apart_are_many_too(world: World) -> None:
    jobs = [running(world, 6), running(world, 6)]
    cut(world, ("n1", "n2", "n3", "n7"))
    world.pass_seconds(1)
    cut(world, ("n8", "n9"))
    world.pass_seconds(30)
    assert kinds(world) == [ActionKind.NOTIFY]
    assert all(world.run(job).generation == 1 for job in jobs)
