"""Ranks as threads of one process: the port `Group` with members that die at places that a test
chooses. A collective in which a member dies may reach some of the others and not the rest.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

LIMIT_SECONDS = 20.0


class Dead(BaseException):
    """Ends a member's thread; no `except Exception` keeps it."""


@dataclass
class Call:
    """One collective of one generation."""

    given: dict[int, Any] = field(default_factory=dict)
    deaf: set[int] = field(default_factory=set)  # whom its result does not reach


class World:
    """`deaths`: places at which members die, each once; `joins`: for each that died, one comes."""

    def __init__(self, size: int, deaths: dict[str, str], joins: bool, seed: int) -> None:
        self.members = [f"m{number}" for number in range(size)]
        self.generation, self.formed = 1, 0
        self.deaths, self.joins = dict(deaths), joins
        self.chance = random.Random(seed)
        self.changed = threading.Condition()
        self.arrived: set[str] = set()
        self.calls: defaultdict[tuple[int, int], Call] = defaultdict(Call)
        self.places: list[tuple[str, str]] = []  # that were passed: member, place
        self.failed: list[BaseException] = []
        self.lost = 0
        self.threads: list[threading.Thread] = []
        self.body: Callable[[Member], None] = lambda member: None

    def run(self, body: Callable[[Member], None]) -> None:
        self.body = body
        for name in list(self.members):
            self.start(name)
        for thread in self.threads:  # more may come meanwhile
            thread.join(LIMIT_SECONDS)
            assert not thread.is_alive(), f"{thread.name} hangs"
        if self.failed:
            raise self.failed[0]

    def start(self, name: str) -> None:
        thread = threading.Thread(target=self.live, args=(name,), name=name, daemon=True)
        self.threads.append(thread)
        thread.start()

    def live(self, name: str) -> None:
        try:
            member = Member(self, name)
            member.join()
            self.body(member)
        except Dead:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
            with self.changed:
                self.failed.append(error)
                self.lose(name)

    def lose(self, name: str) -> None:
        """Holding the lock."""
        self.members.remove(name)
        self.lost += 1
        if self.joins:
            self.members.append(f"j{self.lost}")
            self.start(f"j{self.lost}")
        self.generation += 1
        self.arrived.clear()
        self.changed.notify_all()

    def wait_for(self, what: Callable[[], bool]) -> None:
        assert self.changed.wait_for(what, LIMIT_SECONDS), "nobody comes"


class Member:
    """The port `Group`."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.generation = self.rank = self.size = self.called = 0

    def at(self, place: str) -> None:
        """Dies here if it is to. `deaths` counts how often a place was passed: "reduce#3"."""
        world = self.world
        with world.changed:
            world.places.append((self.name, place))
            passed = world.places.count((self.name, place))
            for named in (place, f"{place}#{passed}"):
                if world.deaths.get(self.name) == named:
                    del world.deaths[self.name]
                    world.lose(self.name)
                    raise Dead

    def join(self) -> None:
        world = self.world
        with world.changed:
            while self.generation != world.generation:
                aim = world.generation
                if self.name not in world.members:
                    raise Dead
                world.arrived.add(self.name)
                world.changed.notify_all()
                world.wait_for(
                    lambda: (
                        world.generation != aim  # noqa: B023 - called within the loop
                        or world.arrived >= set(world.members)
                    )
                )
                if world.generation == aim:
                    self.generation, self.called = aim, 0
                    self.rank, self.size = world.members.index(self.name), len(world.members)

    def next_is_there(self) -> bool:
        """Word of it may be late."""
        return self.world.generation > self.generation and self.world.chance.random() < 0.7

    def regroup(self, error: Exception) -> None:
        if "gloo" not in str(error) and "generation" not in str(error):
            raise error
        with self.world.changed:
            self.world.wait_for(lambda: self.world.generation > self.generation)
        self.join()

    def exchange(self, mine: Any) -> list[Any]:
        self.at("exchange")
        call = self._give(mine)
        self._take(call)
        return [call.given[rank] for rank in range(self.size)]

    def reduce(self, whole: Tensor) -> _Work:
        self.at("bucket")
        call = self._give(whole.clone())
        whole.fill_(torch.nan)  # as one that is half overwritten
        return _Work(self, call, whole)

    def hand_on(self, part: Tensor, source: int) -> None:
        self.at("hand")
        call = self._give(part.clone() if self.rank == source else None)
        self._take(call)
        part.copy_(call.given[source])

    def _give(self, what: Any) -> Call:
        with self.world.changed:
            self.called += 1
            call = self.world.calls[self.generation, self.called]
            if self.world.generation != self.generation:
                raise RuntimeError("gloo: the peer is gone")
            call.given[self.rank] = what
            self.world.changed.notify_all()
        return call

    def _take(self, call: Call) -> None:
        """Once the generation is over, what all had given still reaches some."""
        world = self.world
        with world.changed:
            world.wait_for(
                lambda: len(call.given) == self.size or world.generation != self.generation
            )
            late = world.generation != self.generation and world.chance.random() < 0.5
            if len(call.given) < self.size or late:
                raise RuntimeError("gloo: the peer is gone")


class _Work:
    def __init__(self, member: Member, call: Call, whole: Tensor) -> None:
        self._member, self._call, self._whole = member, call, whole

    def wait(self) -> None:
        self._member.at("wait")
        self._member._take(self._call)
        parts = [self._call.given[rank] for rank in range(self._member.size)]
        self._whole.copy_(torch.stack(parts).sum(0))
