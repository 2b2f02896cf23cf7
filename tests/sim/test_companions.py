"""Runs grow by companion jobs, shrink, and give back what accompanied them."""

from __future__ import annotations

import pytest
from world import World, kinds, running

from unicrond.model.cluster import JobState
from unicrond.model.decision import ActionKind
from unicrond.model.events import ResizeAsked
from unicrond.model.run import RunState


@pytest.fixture
def world() -> World:
    world = World()
    world.nodes(6)
    return world


def resize(world: World, job: int, nodes: int) -> None:
    world.tell(ResizeAsked(world.clock.at, job, nodes, "root"))


def trains_on(world: World, job: int) -> tuple[str, ...]:
    run = world.run(job)
    return run.assignment.nodes if run.state is RunState.RUNNING and run.assignment else ()


def grown(world: World, **wish: object) -> int:
    """A run of two nodes that was told to have four."""
    job = running(world, nodes=2, min_nodes=1, max_nodes=4, **wish)
    resize(world, job, 4)
    world.until(lambda: len(trains_on(world, job)) == 4, within_seconds=60)
    return job


def companion_of(world: World, job: int) -> int:
    (companion,) = (c for c, base in world.companions.items() if base == job)
    return companion


def state_of(world: World, job: int) -> JobState:
    return world.slurm.snapshot().allocations[job].state


def told(world: World) -> str:
    return "\n".join(entry.text for entry in world.store.journal)


def test_a_run_grows_by_a_companion_and_its_base_stays_as_it_was(world: World) -> None:
    job = grown(world)
    assert trains_on(world, job) == ("n1", "n2", "n3", "n4")
    assert world.run(job).restarts == 0
    assert world.slurm.snapshot().allocations[job].nodes == ("n1", "n2")
    world.pass_seconds(5)
    assert world.core.state.incidents == {}


def test_a_run_whose_ranks_regroup_grows_without_a_restart(world: World) -> None:
    grown(world, elastic=True)
    assert ActionKind.PREPARE_RANKS in kinds(world)
    assert ActionKind.STOP_RANKS not in kinds(world)


def test_a_run_shrinks_by_giving_its_companion_back(world: World) -> None:
    job = grown(world)
    resize(world, job, 2)
    world.until(lambda: trains_on(world, job) == ("n1", "n2"))
    world.until(lambda: state_of(world, companion_of(world, job)) is JobState.CANCELLED)
    world.pass_seconds(30)
    assert trains_on(world, job) == ("n1", "n2")
    assert world.run(job).companions == ()
    assert world.core.state.incidents == {}


def test_a_run_shrinks_within_its_base_when_it_has_no_companion(world: World) -> None:
    job = running(world, nodes=3, min_nodes=1)
    resize(world, job, 2)
    world.until(lambda: world.run(job).nodes == ("n1", "n2"))
    assert trains_on(world, job) == ("n1", "n2")
    assert world.run(job).shunned == ()


def test_a_run_grows_again_onto_a_node_that_it_gave_back(world: World) -> None:
    job = grown(world)
    resize(world, job, 2)
    world.until(lambda: world.run(job).companions == () and len(trains_on(world, job)) == 2)
    resize(world, job, 3)
    world.until(lambda: trains_on(world, job) == ("n1", "n2", "n3"), within_seconds=60)


def test_a_companion_that_does_not_start_in_time_is_cancelled(world: World) -> None:
    job = running(world, nodes=2, min_nodes=1, max_nodes=4)
    other = world.submit(4, user="bob", uid=1002)
    world.until(lambda: state_of(world, other) is JobState.RUNNING)
    resize(world, job, 4)
    world.until(lambda: bool(world.companions))
    world.until(lambda: state_of(world, companion_of(world, job)) is JobState.CANCELLED, 150)
    assert "it did not start in time" in told(world)
    assert world.run(job).companions == ()
    assert trains_on(world, job) == ("n1", "n2")


def test_when_the_companion_is_cancelled_by_its_owner_the_run_goes_on_without_it(
    world: World,
) -> None:
    job = grown(world)
    world.slurm.scancel(companion_of(world, job))
    world.until(lambda: trains_on(world, job) == ("n1", "n2"), within_seconds=60)
    world.pass_seconds(60)
    assert len(world.companions) == 1, "it does not grow there again"
    assert world.core.state.incidents == {}


def test_when_the_base_is_cancelled_its_companion_ends_too(world: World) -> None:
    job = grown(world)
    world.slurm.scancel(job)
    world.until(lambda: world.run(job).state is RunState.CANCELLED)
    world.until(lambda: state_of(world, companion_of(world, job)) is JobState.CANCELLED)


def test_when_the_base_is_requeued_its_companion_ends(world: World) -> None:
    job = grown(world)
    world.slurm.requeue(job, 0)
    world.until(lambda: state_of(world, companion_of(world, job)) is JobState.CANCELLED)
    world.until(lambda: world.run(job).state is RunState.RUNNING)
    assert world.run(job).companions == ()


def test_a_lost_node_of_a_companion_leaves_the_run_like_any_other(world: World) -> None:
    job = grown(world)
    world.cut("n4")
    world.until(lambda: trains_on(world, job) == ("n1", "n2", "n3"))
    world.until(lambda: world.run(job).nodes == ("n1", "n2", "n3"))
    assert world.slurm.snapshot().nodes["n4"].reason.startswith("unicron: lost connection")


@pytest.mark.parametrize(("nodes", "why"), [(5, "allows 1 to 4 nodes"), (2, "it has as many")])
def test_an_order_that_cannot_be_followed_is_told_and_nothing_else(
    world: World, nodes: int, why: str
) -> None:
    job = running(world, nodes=2, min_nodes=1, max_nodes=4)
    resize(world, job, nodes)
    world.pass_seconds(5)
    assert why in told(world)
    assert world.performed == []


def test_unicrond_restarted_meanwhile_follows_the_companion_further(world: World) -> None:
    job = running(world, nodes=2, min_nodes=1, max_nodes=4)
    resize(world, job, 4)
    world.until(lambda: bool(world.companions))
    world.kill_unicrond()
    world.pass_seconds(2)
    world.start_unicrond()
    world.until(lambda: len(trains_on(world, job)) == 4, within_seconds=60)
