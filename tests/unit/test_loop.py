"""The loop: what it acknowledges and when, what it refuses, and a clock that somebody sets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from db.memory import MemoryStore
from unicrond import loop as loop_module
from unicrond.core.policy import Policy
from unicrond.core.state import from_saved
from unicrond.core.step import Core
from unicrond.engine import Engine
from unicrond.link.tasks import end_all
from unicrond.loop import Loop
from unicrond.model.decision import Action, Mode
from unicrond.model.events import AgentBeat, AgentJoined, ModeSet, Registration
from unicrond.model.run import Assignment, Phase, Slot

NODES = ("n1", "n2", "n3")
SHORT = Policy(
    mode=Mode.ACTIVE, silence_seconds=1.0, startup_grace_seconds=0.0, many_silent_minimum=99
)


@dataclass
class SettableClock:
    step: float = 0.0

    def now(self) -> float:
        return time.time() + self.step


@dataclass
class World:
    store: MemoryStore = field(default_factory=MemoryStore)
    clock: SettableClock = field(default_factory=SettableClock)
    performed: list[Action] = field(default_factory=list)

    def __post_init__(self) -> None:
        core = Core(from_saved(self.store.load(), SHORT, self.clock.now()))
        self.engine = Engine(core, self.store, self.performed.append)
        self.loop = Loop(self.engine, self.clock)

    async def live(self, seconds: float, between: Callable[[], None] = lambda: None) -> None:
        running = asyncio.create_task(self.loop.run(lambda: None))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            between()
            await asyncio.sleep(0.1)
        assert await end_all([running])

    def join(self) -> None:
        slots = tuple(Slot(i, f"a.{i}", node, 0) for i, node in enumerate(NODES))
        for node in NODES:
            said = Registration(
                7, node, f"{node}-1", 1001, "run", 1.0, 2, 3, 1, NODES, 0,
                Phase.RUNNING, 1, -1, Assignment(1, "a", slots),
            )  # fmt: skip
            self.loop.emit(AgentJoined(self.clock.now(), said))

    def beat(self) -> None:
        for node in NODES:
            beat = AgentBeat(self.clock.now(), 7, node, f"{node}-1", Phase.RUNNING, 1, -1, -1)
            self.loop.emit(beat)


def mode(world: World) -> ModeSet:
    return ModeSet(world.clock.now(), Mode.PAUSED, "an admin")


def test_what_must_not_be_lost_is_acknowledged_once_it_is_stored() -> None:
    async def story() -> None:
        world, told = World(), []
        world.store.fault = "disk full"
        world.loop.emit(mode(world), lambda: told.append(world.store.load().mode))
        await world.live(0.4)
        assert told == []
        world.store.fault = ""
        await world.live(0.4)
        assert told == [Mode.PAUSED]

    asyncio.run(story())


def test_a_full_queue_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "MAX_EVENTS", 2)

    async def story() -> None:
        world = World()
        assert [world.loop.emit(mode(world)) for _ in range(3)] == [True, True, False]
        await world.live(0.2)
        assert world.loop.emit(mode(world))

    asyncio.run(story())


def test_a_clock_that_is_set_makes_nobody_silent_and_hides_nobody() -> None:
    async def story(step: float) -> None:
        world = World()
        world.join()
        await world.live(0.5, world.beat)
        world.clock.step = step
        await world.live(0.6)  # no beat yet
        assert world.performed == []
        await world.live(0.5, world.beat)
        assert world.performed == []
        await world.live(1.8, lambda: _all_but_n2(world))
        assert {action.kind.value for action in world.performed} >= {"stop_ranks"}

    async def stories() -> None:
        await asyncio.gather(story(3600.0), story(-3600.0))

    asyncio.run(stories())


def _all_but_n2(world: World) -> None:
    for node in ("n1", "n3"):
        beat = AgentBeat(world.clock.now(), 7, node, f"{node}-1", Phase.RUNNING, 1, -1, -1)
        world.loop.emit(beat)
