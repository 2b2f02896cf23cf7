"""Runs that regroup, for the tests of what becomes of them."""

from __future__ import annotations

from checkers import Checkers
from world import DyingStore, KilledError, World, running

from db.memory import MemoryStore
from transition.membership import kept_in
from unicrond.model.run import HealStep, RunState

FIRST = 6  # writes before the rank of `interrupted` dies


def elastic(world: World, nodes: int = 3, **wish: object) -> int:
    wish = {"ranks_per_node": 2, "min_nodes": nodes, "elastic": True, **wish}
    return running(world, nodes, **wish)


def goes_on(world: World, job: int, generation: int = 2, within_seconds: float = 60.0) -> float:
    return world.until(
        lambda: (
            world.run(job).generation == generation and world.run(job).state is RunState.RUNNING
        ),
        within_seconds,
    )


def kept(world: World, job: int) -> list[tuple[str, int]]:
    """Node and local rank of the members that the newest generation did not make."""
    return [(slot.node, slot.local_rank) for slot in kept_in(world.run(job).assignment)]


def story_of(world: World) -> str:
    return "\n".join(entry.text for entry in world.store.journal)


def choices(world: World) -> list[str]:
    return [decision.choice for decision in world.store.decisions]


def begins(world: World, job: int, step: HealStep) -> None:
    world.until(lambda: (h := world.run(job).healing) is not None and h.step is step)


def interrupted(write: int, after: bool, least: int = 3) -> World:
    """A rank dies, and unicrond at the given write (0: never)."""
    store = DyingStore(MemoryStore(), at=write, after=after)
    world = World(store=store)
    world.checks.append(Checkers())
    world.nodes(3)
    job = world.submit(3, min_nodes=least, ranks_per_node=2, elastic=True)
    end, died = world.clock.at + 20, world.clock.at + 6
    while world.clock.at < end:
        if world.clock.at == died:
            world.agents.kill_rank(job, "n2")
        try:
            world.tick()
        except KilledError:
            world.kill_unicrond()
            world.start_unicrond()
    return world
