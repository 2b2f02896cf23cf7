"""What people pause is left alone, survives a restart of unicrond, and is taken up again after."""

from __future__ import annotations

import pytest
from world import World, kinds, running

from unicrond.model.decision import ActionKind
from unicrond.model.events import PauseSet
from unicrond.model.pause import Pause, PauseScope
from unicrond.model.run import RunState


@pytest.fixture
def world() -> World:
    world = World()
    world.nodes(6)
    return world


def pause(world: World, scope: PauseScope, value: str, on: bool = True) -> None:
    world.tell(PauseSet(Pause(scope, value, world.clock.at, "ada", "maintenance"), on))
    world.tick()


def partition_of(world: World, job: int) -> str:
    return world.core.state.allocations[job].partition


def test_a_run_in_a_paused_partition_is_only_observed_until_that_is_over(world: World) -> None:
    job = running(world)
    name = partition_of(world, job)
    pause(world, PauseScope.PARTITION, name)
    world.agents.kill_rank(job, "n2")
    world.pass_seconds(20)
    assert world.run(job).generation == 1
    assert kinds(world) == []
    pause(world, PauseScope.PARTITION, name, on=False)
    world.until(lambda: world.run(job).generation > 1 and world.run(job).state is RunState.RUNNING)


def test_a_pause_survives_the_death_of_unicrond(world: World) -> None:
    job = running(world)
    pause(world, PauseScope.PARTITION, partition_of(world, job))
    world.kill_unicrond()
    world.start_unicrond()
    world.pass_seconds(10)
    assert [p.who for p in world.core.state.pauses] == ["ada"]
    world.agents.kill_rank(job, "n2")
    world.pass_seconds(20)
    assert kinds(world) == []


def test_another_partition_is_none_of_its_business(world: World) -> None:
    job = running(world)
    pause(world, PauseScope.PARTITION, "another")
    world.agents.kill_rank(job, "n2")
    world.until(lambda: world.run(job).generation > 1 and world.run(job).state is RunState.RUNNING)


def test_a_kind_of_action_that_is_paused_is_refused_and_the_rest_goes_on(world: World) -> None:
    job = running(world, min_nodes=2)
    pause(world, PauseScope.ACTION, ActionKind.DRAIN)
    world.cut("n3")
    world.until(lambda: world.run(job).generation > 1 and world.run(job).state is RunState.RUNNING)
    world.pass_seconds(120)
    assert ActionKind.DRAIN not in kinds(world)
    assert any("action drain is paused by ada" in line.text for line in world.store.journal)


def test_the_ranks_of_a_past_generation_are_stopped_whatever_is_paused(world: World) -> None:
    job = running(world)
    pause(world, PauseScope.ACTION, ActionKind.STOP_RANKS)
    world.agents.kill_rank(job, "n2")
    world.until(lambda: world.run(job).generation > 1 and world.run(job).state is RunState.RUNNING)
