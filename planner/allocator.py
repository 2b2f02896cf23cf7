"""The exact best division of one pool of workers among runs.

    maximise   sum_i G(i, x_i)      subject to   sum_i x_i <= n,   x_i legal for run i

G is an int64 table of any shape, so exact means exact. Among equal sums: fewest runs moved, then
fewest workers moved, then run by run in the order given, each taking as many workers as it can.

The paper's recurrence S(i, j) = max_k S(i-1, j-k) + G(i, k) takes O(m n^2) steps (arXiv
2401.00134, as quoted by others). It runs here too, but over the few sizes that can matter. At any
price p >= 0 of a worker

    sum_i G(i, x_i) = D(p) - sum_i r(i, x_i) - p (n - sum_i x_i)
    D(p)    = p n + sum_i max_k (G(i, k) - p k)                 an upper bound
    r(i, k) = max_l (G(i, l) - p l) - (G(i, k) - p k)  >=  0    what size k loses against it

so a division that loses L against D(p) has no size with r(i, k) > L and at most L / p workers
unused. Cutting planes on the slope of D find a good price. Then the recurrence minimises the loss
over the sizes with r <= L, for a guess L that grows until the loss found is within it, which
proves it least. Where a shape defeats the bound every size stays in play, and it is the plain
recurrence.

The order among equals rides in the same numbers: a gain is multiplied by more than all moves can
cost together. That limits G: sums within `largest_total` are always solved, beyond it a table may
be refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner import kernels
from planner.kernels import BLOCK, Ints
from unicrond.errors import BadInput

LIMIT = 2**60  # of a key; losses and costs stay within four times as much, and so within int64
PRICE_STEPS = 48  # any price gives an exact answer; a better one gives it sooner
FIRST_GUESS = 4096  # the part of the known loss that is tried first
GROWTH = 8
GUESSES = 64 // 3 + 1  # from 1 to all of int64


class Infeasible(BadInput):
    """The least legal sizes do not fit."""


@dataclass(frozen=True, slots=True)
class Division:
    """Workers of each run, in the order given, and the sum of their gains."""

    sizes: tuple[int, ...]
    gain: int


class Packing(NamedTuple):
    """A key is gain * unit - move * (runs moved) - (workers moved)."""

    unit: int
    move: int

    @staticmethod
    def of(runs: int, workers: int, held: int) -> Packing:
        move = workers + held + 1
        return Packing((runs + 1) * move, move)


def largest_total(runs: int, workers: int, held: int) -> int:
    """What the runs' largest absolute gains may sum to, `held` workers being held in all."""
    return LIMIT // Packing.of(runs, workers, held).unit - 1


def divide(gains: Ints, held: Sequence[int], workers: int) -> Division:
    """Row i of `gains` is run i, column k its gain with k workers, ILLEGAL where it may not have k.

    `held[i]` is what run i has and can keep. Raises Infeasible, or BadInput for gains too large.
    """
    table = np.ascontiguousarray(gains, np.int64)
    sizes = _Pool(table, np.array(held, np.int64), workers).solve() if len(held) else ()
    return Division(sizes, sum(int(table[i, k]) for i, k in enumerate(sizes)))


class _Offer:
    """What every run takes at one price of a worker, and the bound D(price) that follows."""

    def __init__(self, pool: _Pool, price: int, least: Ints, most: Ints) -> None:
        self.price, self.sizes, self.profit = price, np.empty_like(least), np.empty_like(least)
        kernels.respond(
            pool.gains, pool.tops, pool.held, pool.packing.unit, pool.packing.move,
            price, pool.first, least, most, self.sizes, self.profit,
        )  # fmt: skip
        self.unused = pool.workers - int(self.sizes.sum())  # the slope of D, to the right
        self.bound = price * pool.spare + sum(self.profit.tolist())


class _Pool:
    def __init__(self, gains: Ints, held: Ints, workers: int) -> None:
        self.gains, self.held, self.workers = gains, held, workers
        runs, columns = len(held), min(gains.shape[1], workers + 1)
        self.packing = Packing.of(runs, workers, int(held.sum()))
        self.tops = np.empty((runs, -(-columns // BLOCK)), np.int64)
        self.first, largest = np.empty((2, runs), np.int64)
        kernels.summarise(gains, columns, self.tops, self.first, largest)
        if (self.first < 0).any():
            raise Infeasible("floor: a run has no legal size that the pool could give it")
        if (needed := int(self.first.sum())) > workers:
            raise Infeasible(f"floor: the runs need {needed} workers at least, {workers} are there")
        self.spare = workers - needed  # prices are paid for workers beyond everyone's first size
        self.last = np.minimum(columns - 1, self.first + self.spare)
        if int(largest.max()) * self.packing.unit > LIMIT:
            raise self._too_large()

    def _too_large(self) -> BadInput:
        most = LIMIT // self.packing.unit
        return BadInput(f"gains: too large to be exact; in a unit that keeps sums within {most}")

    def solve(self) -> tuple[int, ...]:
        if self.spare == 0:
            return tuple(self.first.tolist())
        offer, gap = self._best_offer()
        allowed = gap // FIRST_GUESS
        for _ in range(GUESSES):
            sizes = self._recurrence(offer, allowed)
            if sizes is not None:
                return sizes
            allowed = min(gap, max(allowed * GROWTH, 1))
        raise AssertionError(f"a division that loses {gap} is known, and none was found")

    def _best_offer(self) -> tuple[_Offer, int]:
        """An offer with a bound near the least, and what a known division loses against it."""
        low = _Offer(self, 0, self.first, self.last)
        if low.unused >= 0:
            return low, 0
        price = min(self._highest_price(low), 2 * LIMIT // self.spare + 1)
        high = _Offer(self, price, self.first, low.sizes)
        if high.unused < 0:
            raise self._too_large()
        for _ in range(PRICE_STEPS):
            rise = low.bound - low.unused * low.price - high.bound + high.unused * high.price
            price = rise // (high.unused - low.unused)  # where their tangents meet
            if not low.price < price < high.price:
                break
            middle = _Offer(self, price, high.sizes, low.sizes)
            low, high = (low, middle) if middle.unused >= 0 else (middle, high)
        known = high.bound - high.price * high.unused
        best = min(low, high, key=lambda offer: offer.bound)
        return best, best.bound - known

    def _highest_price(self, free: _Offer) -> int:
        """One at which no more is taken than is there: beyond, D would exceed D(0)."""
        gains = self.gains[np.arange(self.first.size), self.first]
        distance = abs(self.first - self.held)
        keys = gains * self.packing.unit - (distance > 0) * self.packing.move - distance
        return int((free.bound - sum(keys.tolist())) // self.spare) + 1

    def _recurrence(self, offer: _Offer, allowed: int) -> tuple[int, ...] | None:
        """Each run's size in the division that loses least, if that is at most `allowed`."""
        start, sizes, losses = self._survivors(offer, allowed)
        first, last = sizes[start[:-1]], sizes[start[1:] - 1]
        capacity = self.workers - int(first.sum())  # workers beyond everyone's first survivor
        unused = min(capacity, allowed // offer.price) if offer.price else capacity
        before = np.concatenate(([0], np.cumsum(last - first)))
        low = np.maximum(0, capacity - before)
        high = np.minimum(capacity, unused + before[-1] - before)
        if (low > high).any():
            return None
        extra = sizes - np.repeat(first, np.diff(start))
        offset = np.concatenate(([0], np.cumsum(high - low + 1)))
        table = np.empty(offset[-1], np.int64)
        kernels.least_losses(start, extra, losses, offer.price, allowed, low, high, offset, table)
        if table[0] > allowed:
            return None
        chosen = np.empty(first.size, np.int64)
        kernels.trace(start, extra, losses, low, high, offset, table, chosen)
        return tuple(sizes[chosen].tolist())

    def _survivors(self, offer: _Offer, allowed: int) -> tuple[Ints, Ints, Ints]:
        start, room = np.empty(self.first.size + 1, np.int64), 16 * self.first.size
        while True:  # twice at most
            sizes, losses = np.empty((2, room), np.int64)
            found = kernels.survivors(
                self.gains, self.tops, self.held, self.packing.unit, self.packing.move,
                offer.price, self.first, self.last, offer.profit, allowed, start, sizes, losses,
            )  # fmt: skip
            if found <= room:
                return start, sizes[:found], losses[:found]
            room = found
