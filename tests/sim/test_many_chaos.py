"""Large runs among which whole switches fail, for everybody or for unicrond alone."""

from __future__ import annotations

import random

from checkers import Checkers
from world import World

from unicrond.core.policy import Policy
from unicrond.model.cluster import JobState
from unicrond.model.decision import Mode
from unicrond.model.incident import IncidentState
from unicrond.model.run import RunState

SWITCHES = [[f"n{i}" for i in range(first, first + 5)] for first in (1, 6, 11)]


def chaos(seed: int) -> World:
    dice = random.Random(seed)
    world = World(policy=Policy(mode=dice.choice([Mode.ACTIVE, Mode.ACTIVE, Mode.OBSERVE])))
    world.checks.append(Checkers())
    world.nodes(15)
    for size in dice.choice([(12,), (15,), (7, 8), (10, 3)]):
        world.submit(size, min_nodes=dice.randint(1, size), steps=100_000)
    world.pass_seconds(10)
    for _ in range(dice.randint(1, 8)):
        fault(world, dice)
        world.pass_seconds(dice.choice([0.25, 1, 3, 5, 8, 20, 50]))
    world.slurm.start_controller()
    world.agents.cut_from_unicrond.clear()
    world.agents.linked_to_peers = True
    for i in range(1, 16):
        world.restore(f"n{i}")
    world.pass_seconds(400)
    return world


def fault(world: World, dice: random.Random) -> None:
    switch = dice.choice(SWITCHES)
    running = world.ranks()
    match dice.choice(["rank", "agent", "cut", "cut", "far", "far", "restore", "links", "kill"]):
        case "rank" if running:
            world.agents.kill_rank(*dice.choice(running))
        case "agent" if running:
            world.agents.kill_agent(*dice.choice(running))
        case "cut":
            for node in switch:
                world.cut(node)
        case "far":
            world.agents.cut_from_unicrond ^= set(switch)
        case "restore":
            for node in switch:
                world.restore(node)
        case "links":
            world.agents.linked_to_peers ^= True
        case "kill" if world.agents.unicrond_up:
            world.kill_unicrond()
            world.pass_seconds(dice.choice([0.5, 2, 30]))
            world.start_unicrond()


def test_whatever_fails_together_every_incident_ends_and_no_run_is_stuck(seed: int) -> None:
    world = chaos(seed)
    allocations = world.slurm.snapshot().allocations or {}
    for incident in world.core.state.incidents.values():
        job = allocations.get(incident.run_id or 0)
        queued = job is not None and job.state is JobState.PENDING
        decided = incident.state is IncidentState.PERSON and incident.decided_at > 0
        assert decided or queued, incident
    for run in world.core.state.live_runs():
        waits = allocations[run.run_id].state is JobState.PENDING
        asked = any(i.run_id == run.run_id for i in world.core.state.incidents.values())
        assert run.state is RunState.RUNNING or waits or asked, run
