"""Seeded faults of every kind, with checkers; and every interruption of one heal."""

from __future__ import annotations

import random

import pytest
from checkers import Checkers
from world import DyingStore, KilledError, World

from db.memory import MemoryStore
from unicrond.core.policy import Policy
from unicrond.model.cluster import JobState
from unicrond.model.decision import Mode
from unicrond.model.incident import IncidentState
from unicrond.model.run import RunState

CALM_SECONDS = 400.0


def chaos(seed: int) -> World:
    """Two or three runs of two users on eight nodes, two minutes of faults, then peace."""
    dice = random.Random(seed)
    policy = Policy(
        mode=dice.choice([Mode.ACTIVE, Mode.ACTIVE, Mode.OBSERVE]),
        drains_per_hour=dice.choice([1, 4]),
    )
    world = World(policy=policy, early_return_fails=dice.random() < 0.3)
    world.checks.append(Checkers())
    world.nodes(8)
    for i in range(dice.randint(2, 3)):
        size = dice.randint(1, 3)
        world.submit(
            size, min_nodes=dice.randint(1, size), steps=100_000, user=f"u{i % 2}",
            uid=1001 + i % 2, elastic=dice.random() < 0.6, ranks_per_node=dice.randint(1, 2),
        )  # fmt: skip
    world.pass_seconds(10)
    for _ in range(dice.randint(1, 8)):
        fault(world, dice)
        world.pass_seconds(dice.choice([0.25, 1, 3, 5, 8, 20, 50]))
    make_peace(world)
    world.pass_seconds(CALM_SECONDS)
    return world


def fault(world: World, dice: random.Random) -> None:
    node = f"n{dice.randint(1, 8)}"
    victims = world.ranks()
    match dice.choice(["rank", "agent", "cut", "cut", "restore", "far", "ctld", "kill", "person"]):
        case "rank" if victims:
            world.agents.kill_rank(*dice.choice(victims))
        case "agent" if victims:
            world.agents.kill_agent(*dice.choice(victims))
        case "cut":
            world.cut(node)
        case "restore":
            world.restore(node)
        case "far":
            world.agents.cut_from_unicrond ^= {node}
        case "ctld":
            world.slurm.stop_controller()
        case "kill" if world.agents.unicrond_up:
            world.kill_unicrond()
            world.pass_seconds(dice.choice([0.5, 2, 30]))
            world.start_unicrond()
        case "person":
            with_controller(world, node)


def with_controller(world: World, node: str) -> None:
    if world.slurm.snapshot().nodes is not None:
        world.slurm.drain_by_person(node, "bad fan")


def make_peace(world: World) -> None:
    world.slurm.start_controller()
    for i in range(1, 9):
        world.restore(f"n{i}")
    world.agents.cut_from_unicrond.clear()


def test_whatever_happens_every_incident_ends_and_no_run_is_stuck(seed: int) -> None:
    world = chaos(seed)
    allocations = world.slurm.snapshot().allocations or {}
    for incident in world.core.state.incidents.values():
        job = allocations.get(incident.run_id or 0)
        queued = job is not None and job.state is JobState.PENDING
        left = nobody_is_left(world, incident.run_id)
        assert incident.state is IncidentState.PERSON or queued or left, incident
    for run in world.core.state.live_runs():
        waits = allocations[run.run_id].state is JobState.PENDING
        asked = any(i.run_id == run.run_id for i in world.core.state.incidents.values())
        assert run.state is RunState.RUNNING or waits or asked, run


def nobody_is_left(world: World, run_id: int | None) -> bool:
    """All its agents are gone, and unicrond only observes: the job sits there until its limit."""
    job = world.agents.jobs.get(run_id or 0)
    gone = job is not None and not any(agent.alive for agent in job.agents.values())
    return gone and world.core.state.mode is Mode.OBSERVE


def story(store: MemoryStore | DyingStore, world: World | None = None) -> World:
    """A lost batch host: the longest heal there is."""
    world = World(store=store)
    world.nodes(4)
    job = world.submit(3, min_nodes=2)
    world.pass_seconds(8)
    world.cut("n1")
    return world if isinstance(store, MemoryStore) else finish(world, job)


def finish(world: World, job: int) -> World:
    world.pass_seconds(80)
    return world


def end_state(world: World) -> tuple[object, ...]:
    run = world.run(1)
    loss = run.loss_of("n1")
    nodes = world.slurm.snapshot().nodes or {}
    return (
        run.state,
        run.generation,
        run.assignment and run.assignment.nodes,
        loss and loss.state,
        nodes["n1"].reason,
        len(world.core.state.incidents),
        len(world.core.state.pending),
    )


def undisturbed() -> tuple[int, tuple[object, ...]]:
    store = DyingStore(MemoryStore(), at=-1, after=False)
    world = story(store)
    return store.writes, end_state(world)


WRITES, EXPECTED = undisturbed()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("write", range(1, WRITES + 1))
def test_killed_at_any_write_the_end_is_the_same(write: int, after: bool) -> None:
    store = DyingStore(MemoryStore(), at=write, after=after)
    world = World(store=store)
    world.nodes(4)
    world.submit(3, min_nodes=2)
    end = world.clock.at + 88
    cut_at = world.clock.at + 8
    while world.clock.at < end:
        if world.clock.at == cut_at:
            world.cut("n1")
        try:
            world.tick()
        except KilledError:
            world.kill_unicrond()
            world.start_unicrond()
    assert end_state(world) == EXPECTED
