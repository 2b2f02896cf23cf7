"""FLOPs that a run's own ranks counted, where its user told none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from world import World

from unicrond.model.events import AgentBeat
from unicrond.model.run import RunState
from unicrond.model.workload import BatchScaling, Workload


@pytest.fixture
def world() -> World:
    world = World()
    world.nodes(2)
    return world


def running(world: World, workload: Workload) -> int:
    job = world.submit(2)
    world.until(lambda: job in world.core.state.runs and world.run(job).state is RunState.RUNNING)
    run = world.run(job)
    world.core.state.runs[job] = replace(run, workload=workload)
    return job


def count(world: World, job: int, node: str, flops: float, generation: int = 1) -> Workload:
    view = world.run(job).agents[node]
    beat = AgentBeat(
        world.clock.at, job, node, view.agent, view.phase, generation, view.stopped_generation,
        view.iteration, flops=flops, peers_heard=view.peers_heard, regrouping=view.regrouping,
        prepared=view.prepared,
    )  # fmt: skip
    world.tell(beat)
    world.pass_seconds(0.5)
    return world.run(job).workload


def test_all_nodes_must_have_counted_before_it_is_the_runs(world: World) -> None:
    job = running(world, Workload())
    assert count(world, job, "n1", 2e12).flops_per_iteration == 0
    told = count(world, job, "n2", 3e12)
    assert (told.flops_per_iteration, told.workers, told.counted) == (5e12, 2, True)
    story = [entry.text for entry in world.store.journal]  # type: ignore[attr-defined]
    assert "its ranks counted 5e+12 FLOPs an iteration on 2 GPUs" in story


def test_what_the_user_told_stays(world: World) -> None:
    job = running(world, Workload(flops_per_iteration=1e15, workers=2))
    count(world, job, "n1", 2e12)
    assert count(world, job, "n2", 3e12).flops_per_iteration == 1e15


@pytest.mark.parametrize(
    ("scaling", "flops"), [(BatchScaling.PER_RANK, 2e13), (BatchScaling.FIXED, 5e12)]
)
def test_it_is_scaled_to_the_workers_that_the_workload_is_told_for(
    world: World, scaling: BatchScaling, flops: float
) -> None:
    job = running(world, Workload(workers=8, scaling=scaling))
    count(world, job, "n1", 2e12)
    assert count(world, job, "n2", 3e12).flops_per_iteration == flops


def test_another_generations_count_is_not_this_ones(world: World) -> None:
    job = running(world, Workload())
    count(world, job, "n1", 2e12, generation=0)
    assert count(world, job, "n2", 3e12).flops_per_iteration == 0
