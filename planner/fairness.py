"""Nobody waits for ever: whoever waited long enough gets a turn at its smallest size, for a while.

A run that has nothing and has waited `patience` is given a floor, its smallest legal size; those
who waited longest come first, and nobody overtakes one whose floor does not fit yet. Once it has
workers its turn begins: it keeps that floor for `turn`, then competes by its weight again.

So a run waits at most  patience + turn x (runs that waited longer when its patience ended)  plus
what it takes to carry plans out, provided that its smallest size fits beside the floors that are
not turns and within its account's ceiling, and that plans are made again when a turn or a patience
ends. Where the account is guaranteed workers a turn of its run comes out of these first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from planner.objective import Claim, Limits, Problem


@dataclass(frozen=True, slots=True)
class Guarantee:
    """Of a Slurm account, in nodes: of all its runs together, and of each. Ceilings None: none."""

    floor_nodes: int = 0
    ceiling_nodes: int | None = None
    run_floor_nodes: int = 0
    run_ceiling_nodes: int | None = None


NO_GUARANTEE = Guarantee()


@dataclass(frozen=True, slots=True)
class Wait:
    """`waited`: since when it has nothing; `turn_left`: of a turn that it has now. Seconds."""

    waited_seconds: float = 0.0
    turn_left_seconds: float = 0.0


def with_turns(problem: Problem, waits: Mapping[int, Wait], patience_seconds: float) -> Problem:
    """The problem with the floors that turns call for. Runs that may use several pools are counted
    where they are."""
    books = _Books(problem)
    room, floors = dict(books.left), dict[int, int]()
    turns, queue = _in_turn(problem, waits), _waiting(problem, waits, patience_seconds)
    for claim in (*turns, *queue):
        floor = max(claim.floor, smallest(claim))
        more = floor - claim.floor
        cost = books.cost(claim, more)
        if cost is None:
            continue
        if cost <= books.left[claim.pool]:
            books.take(claim, more)
            floors[claim.run_id] = floor
        elif cost <= room[claim.pool]:
            books.left[claim.pool] = 0  # nobody overtakes it
    claims = (replace(c, floor=floors.get(c.run_id, c.floor)) for c in problem.claims)
    return replace(problem, claims=tuple(claims))


class _Books:
    """Workers of each pool that no floor takes, and those that each account's floors take."""

    def __init__(self, problem: Problem) -> None:
        self.left = {name: pool.workers for name, pool in problem.pools.items()}
        self._limits = problem.accounts
        self._taken = Counter[str]()
        homes = {claim.account: claim.pool for claim in problem.claims}
        for name, limits in self._limits.items():
            if name in homes:
                self.left[homes[name]] -= limits.floor
        for claim in problem.claims:
            self.take(claim, claim.floor)

    def cost(self, claim: Claim, more: int) -> int | None:
        """What a floor that is higher by so much takes from the pool; None: past a ceiling."""
        limits, taken = self._limits.get(claim.account, Limits()), self._taken[claim.account]
        if limits.ceiling is not None and taken + more > limits.ceiling:
            return None
        return max(0, more - limits.beside(taken).floor)

    def take(self, claim: Claim, more: int) -> None:
        self.left[claim.pool] -= self.cost(claim, more) or 0
        self._taken[claim.account] += more


def smallest(claim: Claim) -> int:
    """Its smallest legal size where it is, 0 where it has none."""
    table = claim.throughput[claim.pool]
    sizes = np.flatnonzero(~np.isnan(table[1:])) + 1
    fitting = sizes[sizes <= (claim.ceiling if claim.ceiling is not None else table.size)]
    return int(fitting[0]) if fitting.size else 0


def _in_turn(problem: Problem, waits: Mapping[int, Wait]) -> list[Claim]:
    """Those with the least of their turn left first: they began first."""
    there = [c for c in problem.claims if c.held and _of(waits, c).turn_left_seconds > 0]
    return sorted(there, key=lambda c: (_of(waits, c).turn_left_seconds, c.run_id))


def _waiting(problem: Problem, waits: Mapping[int, Wait], patience: float) -> list[Claim]:
    """Those who waited longest first."""
    there = [c for c in problem.claims if not c.size and _of(waits, c).waited_seconds >= patience]
    return sorted(there, key=lambda c: (-_of(waits, c).waited_seconds, c.run_id))


def _of(waits: Mapping[int, Wait], claim: Claim) -> Wait:
    return waits.get(claim.run_id, Wait())
