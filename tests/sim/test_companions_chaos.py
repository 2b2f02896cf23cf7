"""Seeded orders of sizes, and plans, among faults: no node in two runs, everything ends well."""

from __future__ import annotations

import random

import pytest
from checkers import Checkers
from test_chaos import fault, make_peace
from test_plans import wish
from world import World

from unicrond.core.policy import Policy
from unicrond.model.cluster import JobState
from unicrond.model.decision import Mode
from unicrond.model.events import ResizeAsked
from unicrond.model.run import RunState

CALM_SECONDS = 250.0


def chaos(seed: int) -> World:
    dice = random.Random(seed)
    eager = {"regrow_seconds": 5.0, "hands_off_seconds": 1.0}
    world = World(policy=Policy(mode=Mode.ACTIVE, drains_per_hour=4, **eager))
    world.checks.append(Checkers())
    world.nodes(8)
    for i in range(2):
        world.submit(
            2, min_nodes=1, max_nodes=4, steps=100_000, user=f"u{i}", uid=1001 + i,
            elastic=dice.random() < 0.5,
        )  # fmt: skip
    world.pass_seconds(10)
    for _ in range(dice.randint(3, 8)):
        disturb(world, dice)
        world.pass_seconds(dice.choice([0.25, 1, 3, 8, 20]))
    make_peace(world)
    world.pass_seconds(CALM_SECONDS)
    return world


def disturb(world: World, dice: random.Random) -> None:
    if dice.random() < 0.6:
        if dice.random() < 0.5:
            world.tell(ResizeAsked(world.clock.at, dice.randint(1, 2), dice.randint(1, 4), "root"))
        else:
            wish(world, {1: dice.randint(-1, 5), 2: dice.randint(-1, 5)})
    elif dice.random() < 0.3 and world.companions and world.slurm.snapshot().nodes is not None:
        world.slurm.scancel(dice.choice(sorted(world.companions)))
    else:
        fault(world, dice)


@pytest.mark.parametrize("case", range(3))
def test_runs_of_changing_size_live_through_faults(case: int) -> None:
    world = chaos(case)
    allocations = world.slurm.snapshot().allocations
    there = {job: allocations[job] for job in allocations.keys() & world.companions.keys()}
    live = {job for job, allocation in there.items() if allocation.state.live}
    known = {c.job_id for run in world.core.state.runs.values() for c in run.companions}
    assert live <= known, "every companion belongs to a run"
    for run in world.core.state.runs.values():
        job = allocations.get(run.run_id)
        if run.state is RunState.RUNNING and job and job.state is JobState.RUNNING:
            assert set(run.assignment.nodes) <= set(run.nodes)
            assert run.healing is None
