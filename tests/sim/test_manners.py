"""Companions give way to whoever waits in Slurm's queue."""

from __future__ import annotations

import pytest
from test_companions import companion_of, grown, resize, state_of, told, trains_on
from world import World, kinds, running

from unicrond.core.policy import Policy
from unicrond.model.cluster import JobState
from unicrond.model.decision import ActionKind, Mode


@pytest.fixture
def world() -> World:
    world = World()
    world.nodes(6)
    return world


def starts(world: World, job: int, within_seconds: float = 20) -> float:
    return world.until(lambda: state_of(world, job) is JobState.RUNNING, within_seconds)


def companions(world: World) -> set[JobState]:
    return {state_of(world, job) for job in world.companions}


@pytest.mark.parametrize("elastic", [False, True])
def test_a_companion_gives_way_to_a_job_that_waits_for_its_nodes(
    world: World, elastic: bool
) -> None:
    job = grown(world, elastic=elastic)
    other = world.submit(4, user="bob", uid=1002)
    assert starts(world, other) < 10
    world.until(lambda: trains_on(world, job) == ("n1", "n2"))
    world.pass_seconds(20)
    assert world.run(job).companions == ()
    assert f"job {other} of bob waits for nodes" in told(world)
    assert world.core.state.incidents == {}
    assert (ActionKind.HOLD_RANKS in kinds(world)) is elastic


def test_it_stays_while_the_job_could_not_start_with_its_nodes_either(world: World) -> None:
    job = grown(world)
    world.submit(6, user="bob", uid=1002)  # the base has two of the six
    world.pass_seconds(25)
    assert len(trains_on(world, job)) == 4
    assert companions(world) == {JobState.RUNNING}


def test_it_stays_while_enough_nodes_are_free(world: World) -> None:
    job = grown(world)
    other = world.submit(2, user="bob", uid=1002)
    starts(world, other)
    world.pass_seconds(40)
    assert len(trains_on(world, job)) == 4


def test_a_job_that_waits_although_nodes_are_free_is_made_way_for_and_not_for_ever(
    world: World,
) -> None:
    """n5 and n6 are free, and it wants others: Slurm does not tell why it waits."""
    job = grown(world)
    other = world.slurm.submit(2, gpus_per_node=1, user="bob", uid=1002, exclude=["n5", "n6"])
    assert 25 < starts(world, other, 60) < 45
    everywhere = [f"n{i}" for i in range(1, 7)]
    never = world.slurm.submit(1, gpus_per_node=1, user="bob", uid=1002, exclude=everywhere)
    world.pass_seconds(20)
    resize(world, job, 3)
    world.until(lambda: len(trains_on(world, job)) == 3, 60)
    world.pass_seconds(300)
    told_of = [line for line in told(world).split("\n") if f"job {never} of bob waits" in line]
    assert len({line for line in told_of if "companion job" in line}) <= 2


def test_the_fewest_give_way_the_newest_first(world: World) -> None:
    job = running(world, nodes=2, min_nodes=1, max_nodes=6)
    resize(world, job, 4)
    world.until(lambda: len(trains_on(world, job)) == 4, 60)
    resize(world, job, 6)
    world.until(lambda: len(trains_on(world, job)) == 6, 60)
    first, second = sorted(world.companions)
    other = world.submit(2, user="bob", uid=1002)
    starts(world, other)
    world.pass_seconds(30)
    assert (state_of(world, first), state_of(world, second)) == (
        JobState.RUNNING,
        JobState.CANCELLED,
    )
    assert len(trains_on(world, job)) == 4


def test_a_companion_of_one_run_does_not_give_way_to_one_of_another(world: World) -> None:
    job = grown(world)
    other = running(world, nodes=2, min_nodes=1, max_nodes=4)
    resize(world, other, 3)
    world.pass_seconds(100)
    assert len(trains_on(world, job)) == 4


def test_a_companion_is_given_back_before_its_time_is_over() -> None:
    world = World(Policy(mode=Mode.ACTIVE, companion_limit_seconds=300.0))
    world.nodes(6)
    job = grown(world)
    companion = companion_of(world, job)
    shown = world.slurm.snapshot().allocations[companion]
    assert shown.time_limit_seconds == 300
    world.until(lambda: state_of(world, companion) is JobState.CANCELLED)
    assert world.clock.at < shown.start_time + 300 - 30
    world.until(lambda: trains_on(world, job) == ("n1", "n2"))


def test_who_is_only_observed_gives_nothing_back(world: World) -> None:
    job = grown(world)
    world.core.state.mode = Mode.OBSERVE
    other = world.submit(4, user="bob", uid=1002)
    world.pass_seconds(60)
    assert state_of(world, other) is JobState.PENDING
    assert len(trains_on(world, job)) == 4
