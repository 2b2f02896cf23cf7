"""The simulator's rule `today` decides as the production core does on a simulated Slurm."""

from __future__ import annotations

import random

import numpy as np
import pytest
from world import World

from simulator.engine import Outcome, simulate
from simulator.library import policies
from simulator.model import HOUR, Cluster, Failure, RunSpec
from unicrond.model.events import AgentLeft
from unicrond.model.run import RunState

SILENT_SECONDS = 15.0
SETTLED_SECONDS = 130.0
RETURNED_SECONDS = 40.0
Story = list[frozenset[str]]
TODAY = policies()["unicron-today"]


def in_production(nodes: int, size: int, least: int, cuts: list[int]) -> Story:
    """Where the run trains after each cut; nowhere while it is queued."""
    world = World()
    world.nodes(nodes)
    job = world.submit(size, min_nodes=least, steps=1_000_000)
    world.until(lambda: job in world.core.state.runs and world.run(job).state is RunState.RUNNING)
    world.pass_seconds(8)
    story = []
    for node in cuts:
        lose(world, job, f"n{node}")
        run = world.run(job)
        trains = run.state is RunState.RUNNING and run.assignment
        story.append(frozenset(run.assignment.nodes) if trains and run.assignment else frozenset())
    return story


def lose(world: World, job: int, node: str) -> None:
    """Cuts a node and waits; the link gives its silent connection up, as its server does."""
    world.cut(node)
    world.pass_seconds(SILENT_SECONDS)
    view = world.run(job).agents.get(node)
    if view is not None:
        world.tell(AgentLeft(world.clock.at, job, node, view.agent, False, silent=True))
    world.pass_seconds(SETTLED_SECONDS)


def in_simulation(nodes: int, size: int, least: int, cuts: list[int]) -> Story:
    failures = [
        Failure((i + 1) * HOUR, (node - 1,), "lost connection", 1000 * HOUR)
        for i, node in enumerate(cuts)
    ]
    here = cluster(nodes, spec(1, nodes, least, start_nodes=size))
    outcome = simulate(here, TODAY, failures, records=True)
    return [trains(outcome, 1, (i + 2) * HOUR - 1) for i in range(len(cuts))]


def spec(run_id: int, nodes: int, least: int, **more: int) -> RunSpec:
    flops = np.arange(nodes + 1, dtype=np.float64)
    flops[:least] = np.nan
    return RunSpec(run_id, "", flops, **more)


def cluster(nodes: int, *runs: RunSpec) -> Cluster:
    return Cluster(nodes, 1, nodes, runs, 20 * HOUR, 1e-6, 1e5)


def trains(outcome: Outcome, run_id: int, at: int) -> frozenset[str]:
    training = any(
        s.who == run_id and s.how == "training" and s.start <= at < s.end
        for s in outcome.ledger.runs.segments
    )
    held = {
        f"n{s.who + 1}"
        for s in outcome.ledger.nodes.segments
        if s.how == f"run {run_id}" and s.start <= at < s.end
    }
    return frozenset(held) if training else frozenset()


def stories() -> list[tuple[int, int, int, list[int]]]:
    dice = random.Random(7)
    drawn = []
    for _ in range(12):
        nodes = dice.randint(3, 7)
        size = dice.randint(2, nodes)
        cuts = dice.sample(range(1, nodes + 1), dice.randint(1, min(3, nodes - 1)))
        drawn.append((nodes, size, dice.randint(1, size), cuts))
    return drawn


@pytest.mark.parametrize(
    ("nodes", "size", "least", "cuts"),
    [
        (4, 3, 2, [2]),  # goes on without it
        (4, 3, 3, [2]),  # too few: requeued onto the spare
        (3, 3, 3, [2]),  # too few, no spare: stays in the queue
        (4, 3, 2, [1]),  # the batch host
        (6, 3, 2, [2, 3]),  # smaller, then requeued at its full size
        (5, 3, 3, [5, 2]),  # an idle node first, which the requeue must not get
        *stories(),
    ],
)
def test_lost_nodes_leave_a_run_where_production_leaves_it(
    nodes: int, size: int, least: int, cuts: list[int]
) -> None:
    assert in_simulation(nodes, size, least, cuts) == in_production(nodes, size, least, cuts)


def with_a_node_back(size: int, least: int) -> tuple[World, int, Outcome]:
    """Of three nodes n2 is lost, and after a while repaired and returned by a person."""
    world = World()
    world.nodes(3)
    job = world.submit(size, min_nodes=least, steps=1_000_000)
    world.pass_seconds(10)
    lose(world, job, "n2")
    world.restore("n2")
    world.slurm.resume_by_person("n2")
    world.pass_seconds(RETURNED_SECONDS)
    failure = Failure(HOUR, (1,), "lost connection", HOUR)
    here = cluster(3, spec(1, 3, least, start_nodes=size))
    return world, job, simulate(here, TODAY, [failure], records=True)


def test_a_node_that_returns_does_not_make_a_run_grow() -> None:
    world, job, outcome = with_a_node_back(3, 2)
    assignment = world.run(job).assignment
    assert assignment is not None
    assert trains(outcome, 1, 5 * HOUR) == frozenset(assignment.nodes) == {"n1", "n3"}


def test_a_queued_run_may_have_its_repaired_node_again() -> None:
    """A drained node is not excluded besides: the drain ends with the repair."""
    world, job, outcome = with_a_node_back(3, 3)
    assignment = world.run(job).assignment
    assert assignment is not None
    assert trains(outcome, 1, 2 * HOUR - 1) == frozenset()
    assert trains(outcome, 1, 5 * HOUR) == frozenset(assignment.nodes) == {"n1", "n2", "n3"}


def test_a_run_that_ends_makes_room_for_a_queued_one() -> None:
    world = World()
    world.nodes(3)
    first = world.submit(2, steps=100)
    second = world.submit(3, steps=1_000_000)
    runs = world.core.state.runs
    world.until(lambda: first in runs and world.run(first).state is RunState.COMPLETED)
    world.until(lambda: second in runs and bool(world.run(second).assignment))
    assignment = world.run(second).assignment
    specs = spec(1, 3, 2, start_nodes=2, work=2 * 3600), spec(2, 3, 3, start_nodes=3, arrives=1)
    outcome = simulate(cluster(3, *specs), TODAY, (), records=True)
    assert assignment is not None
    assert trains(outcome, 2, HOUR - 1) == frozenset()
    assert trains(outcome, 2, 3 * HOUR) == frozenset(assignment.nodes)
