"""Two or three unicronds, a database that fails, processes that stop for any time at any point,
stopwatches that run unevenly: never do acts of two of them overlap, and in the end one leads."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from db.memory import MemoryLeases
from unicrond.core import leader
from unicrond.core.leader import Candidate, Step
from unicrond.errors import StoreUnavailable

CHAOS_SECONDS, CALM_SECONDS = 120.0, 40.0
UNEVEN = 0.01  # of two stopwatches; real ones differ by a hundredth of that
Waits = Iterator[float]


@dataclass(frozen=True)
class Act:
    who: int
    began: float
    ended: float


@dataclass
class World:
    chance: random.Random
    leases: MemoryLeases = field(default_factory=MemoryLeases)
    now: float = 0.0
    acts: list[Act] = field(default_factory=list)

    @property
    def calm(self) -> bool:
        return self.now > CHAOS_SECONDS

    def pause(self) -> float:
        """Of a process, at whatever point it is."""
        long = not self.calm and self.chance.random() < 0.03
        return self.chance.uniform(0, 20 if long else 0.05)

    def fails(self) -> bool:
        return not self.calm and self.chance.random() < 0.1

    def live(self, unicronds: list[Unicrond]) -> None:
        due = [(0.0, number, one.live()) for number, one in enumerate(unicronds)]
        while self.now < CHAOS_SECONDS + CALM_SECONDS:
            self.now, number, life = heapq.heappop(due)
            heapq.heappush(due, (self.now + next(life), number, life))


@dataclass
class Unicrond:
    """As leading.py drives it, but that each line may take any time."""

    number: int
    world: World
    lease_seconds: float
    act_seconds: float
    lives: int = 0

    def __post_init__(self) -> None:
        self._rate = self.world.chance.uniform(1 - UNEVEN / 2, 1 + UNEVEN / 2)
        self._offset = self.world.chance.uniform(-1e6, 1e6)

    def watch(self) -> float:
        return self._offset + self._rate * self.world.now

    def may_act(self) -> bool:
        return self.known.may_act(self.watch())

    def live(self) -> Waits:
        while True:
            self.lives += 1
            me = f"{self.number}-{self.lives}"
            self.known = Candidate(me, "host", self.lease_seconds, self.act_seconds)
            yield from self._stand_by()
            yield from self._lead()
            yield 0.2 + self.world.pause()

    def _stand_by(self) -> Waits:
        while not self.known.term:
            with suppress(StoreUnavailable):
                yield from self._look()
            yield 0.25 + self.world.pause()

    def _look(self) -> Waits:
        yield from self._asked()
        row = self.world.leases.read()
        yield from self._answered()
        self.known = leader.looked(self.known, row, self.watch())
        yield self.world.pause()
        if leader.step(self.known, self.watch()) is not Step.TAKE:
            return
        wanted, sent_at = self.known.wanted(), self.watch()
        yield from self._asked()
        done = self.world.leases.take(row, wanted)
        yield from self._answered()
        if done:
            self.known = leader.took(self.known, wanted, sent_at)

    def _lead(self) -> Waits:
        while self.world.chance.random() > 0.02 or self.world.calm:
            yield 0.1 + self.world.pause()
            todo = leader.step(self.known, self.watch())
            if todo is Step.STOP:
                return
            with suppress(StoreUnavailable):
                if todo is Step.RENEW:
                    yield from self._renew()
                if self.world.chance.random() < 0.5:
                    yield from self._act()
        # it is killed, and what it began runs on

    def _renew(self) -> Waits:
        row, sent_at = self.known.row, self.watch()
        yield from self._asked()
        done = row is not None and self.world.leases.renew(row)
        yield from self._answered()
        self.known = leader.renewed(self.known, done, sent_at)

    def _act(self) -> Waits:
        """It is asked right before; a command runs on, also when who began it is stopped or dead,
        and no longer than its time-out."""
        yield from self._renew()
        if not self.may_act():
            return
        began, least = self.world.now, 0.9 * self.act_seconds
        ended = began + self.world.chance.uniform(least, self.act_seconds)
        self.world.acts.append(Act(self.number, began, ended))

    def _asked(self) -> Waits:
        yield self.world.pause()
        if self.world.fails():
            raise StoreUnavailable("not asked")

    def _answered(self) -> Waits:
        yield self.world.pause()
        if self.world.fails():
            raise StoreUnavailable("it was done all the same")


def overlapping(acts: list[Act]) -> list[tuple[Act, Act]]:
    ordered = sorted(acts, key=lambda act: act.began)
    return [
        (one, other)
        for number, one in enumerate(ordered)
        for other in ordered[number + 1 :]
        if other.began < one.ended and other.who != one.who
    ]


def lived(seed: int, many: int) -> tuple[World, list[Unicrond]]:
    world = World(random.Random(seed))
    # each host has a configuration of its own
    shapes = [(world.chance.choice((2.0, 4.0)), world.chance.choice((1.0, 3.0))) for _ in "123"]
    unicronds = [Unicrond(i, world, *shapes[i]) for i in range(many)]
    world.live(unicronds)
    return world, unicronds


@given(seed=st.integers(0, 2**32), many=st.sampled_from((2, 3)))
def test_acts_of_two_never_overlap_and_in_the_end_one_leads(seed: int, many: int) -> None:
    world, unicronds = lived(seed, many)
    assert overlapping(world.acts) == []
    assert sum(one.may_act() for one in unicronds) == 1
    assert any(act.began > CHAOS_SECONDS for act in world.acts)


@pytest.mark.parametrize("broken", ["wait", "check"])
def test_a_rule_that_is_left_out_is_noticed(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    """Of these worlds some must be hard enough."""
    if broken == "wait":  # a standby does not wait until what was begun is over
        short = property(lambda known: known.lease_seconds)
        monkeypatch.setattr(Candidate, "wait_seconds", short)
    else:  # a leader acts although its lease ran out
        monkeypatch.setattr(Candidate, "may_act", lambda known, _: known.term > 0)
        monkeypatch.setattr(Unicrond, "_renew", lambda _: iter(()))
    assert any(overlapping(lived(seed, 3)[0].acts) for seed in range(200))
