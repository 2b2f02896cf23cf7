"""Seeded faults in quick succession, upon runs that regroup: each strikes into the heal before."""

from __future__ import annotations

import random

from checkers import Checkers
from test_chaos import make_peace
from world import World

from unicrond.core.policy import Policy
from unicrond.model.decision import ActionKind, Mode
from unicrond.model.run import RunState

ORDERS = (ActionKind.HOLD_RANKS, ActionKind.START_RANKS, ActionKind.STOP_RANKS)
CALM_SECONDS = 130.0  # more than ranks may take to be prepared
NODES = [f"n{number}" for number in range(1, 9)]


def chaos(seed: int) -> World:
    """A run or two on eight nodes, a few volleys of faults, then peace."""
    dice = random.Random(seed)
    world = World(policy=Policy(mode=Mode.ACTIVE, restarts_per_hour=1000))
    world.checks.append(Checkers())
    world.nodes(8)
    for _ in range(dice.choice([1, 1, 2])):
        size = dice.randint(2, 4)
        world.submit(
            size, min_nodes=dice.randint(1, size), steps=100_000, elastic=True,
            ranks_per_node=dice.randint(1, 3),
        )  # fmt: skip
    world.pass_seconds(8)
    for _ in range(dice.randint(1, 3)):
        for _ in range(dice.randint(1, 4)):
            strike(world, dice)
            world.pass_seconds(dice.choice([0.25, 0.25, 0.5, 1]))
        world.lost_orders.clear()
        world.pass_seconds(dice.choice([2, 4, 8, 40]))
    make_peace(world)
    world.pass_seconds(CALM_SECONDS)
    return world


def strike(world: World, dice: random.Random) -> None:
    living = [
        (job, agent.node)
        for job, started in world.agents.jobs.items()
        for agent in started.agents.values()
        if agent.living
    ]
    node = dice.choice(NODES)
    match dice.choice(
        ["rank", "rank", "rank", "again", "agent", "cut", "restore", "order", "kill"]
    ):
        case "rank" if living:
            world.agents.kill_rank(*dice.choice(living))
        case "again" if living:
            world.agents.kill_rank(*dice.choice(living), signal=None, code=75)
        case "agent" if living:
            world.agents.kill_agent(*dice.choice(living))
        case "cut":
            world.cut(node)
        case "restore":
            world.restore(node)
        case "order":
            world.lost_orders.add((dice.choice(ORDERS), node))
        case "kill" if world.agents.unicrond_up:
            world.kill_unicrond()
            world.pass_seconds(dice.choice([0.25, 2, 20]))
            world.start_unicrond()


def test_whatever_strikes_into_regrouping_the_run_goes_on_or_a_person_is_asked(seed: int) -> None:
    world = chaos(seed)
    before = {run_id: job.step for run_id, job in world.agents.jobs.items()}
    world.pass_seconds(5)
    for run in world.core.state.live_runs():
        asked = any(i.run_id == run.run_id for i in world.core.state.incidents.values())
        assert run.state in (RunState.RUNNING, RunState.REQUEUED) or asked, run
        assert run.healing is None or run.state is RunState.REQUEUED, run
        if run.state is RunState.RUNNING:
            assert world.agents.jobs[run.run_id].step > before[run.run_id], "it trains"


def test_most_of_these_heals_keep_processes() -> None:
    """Else the chaos would prove little."""
    journal = [entry.text for seed in (1, 2) for entry in chaos(seed).store.journal]
    assert sum("in the processes that they had" in text for text in journal) > 1
